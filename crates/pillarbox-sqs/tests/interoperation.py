"""The other side of interoperation.rs: boto3, as any program would use it.

    python interoperation.py ENDPOINT send|receive QUEUE
"""

import base64
import json
import sys

import boto3

endpoint, task, name = sys.argv[1:]
sqs = boto3.client(
    "sqs",
    endpoint_url=endpoint,
    region_name="us-east-1",
    aws_access_key_id="a",
    aws_secret_access_key="b",
)

if task == "send":
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody='{"n": 1}',
        MessageAttributes={
            "tenant": {"DataType": "String", "StringValue": "ünï"},
            "count": {"DataType": "Number", "StringValue": "12"},
            "photo": {"DataType": "Binary.png", "BinaryValue": bytes([0, 1, 255])},
            "pillarbox.reply_to": {"DataType": "String", "StringValue": "answers"},
        },
    )
    print(json.dumps({"id": sent["MessageId"]}))
else:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    answer = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        MessageAttributeNames=["All"],
        AttributeNames=["All"],
        WaitTimeSeconds=1,
    )
    for message in answer.get("Messages", []):
        attributes = {
            name: [
                value["DataType"],
                value["StringValue"]
                if "StringValue" in value
                else base64.b64encode(value["BinaryValue"]).decode(),
            ]
            for name, value in message.get("MessageAttributes", {}).items()
        }
        print(json.dumps({"body": message["Body"], "attributes": attributes}))
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

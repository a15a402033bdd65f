//! Messages of boto3 for us, and ours for boto3.

use std::path::Path;
use std::process::{Command, Stdio};

use pillarbox_core::{Mailbox, Outgoing, Receive};
use pillarbox_sqs::TYPES;
use pillarbox_testing::block_on;
use pillarbox_testing::server::{SqsServer, sqs_python};
use serde_json::{Value, json};

use crate::common::{one, only, open, queue, start_all};

/// Runs the Python program, and returns the lines that it prints.
fn boto3(server: &SqsServer, task: &str, queue: &str) -> Vec<Value> {
    let python = sqs_python().expect("Python with boto3 is not installed; run `make setup`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interoperation.py");
    let output = Command::new(python)
        .arg(script)
        .args([&server.endpoint(), task, queue])
        .stdin(Stdio::null())
        .output()
        .expect("Python");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "boto3 on {}:\n{errors}", server.flavour().name());
    let lines = String::from_utf8(output.stdout).expect("text");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn boto3_sends_and_we_receive(server: &SqsServer) {
    let sent = only(boto3(server, "send", "from-boto3"));
    let backend = open(server, "").await;
    let mailbox: Mailbox<Value, ()> = backend.mailbox("from-boto3").expect("opened");
    let batch = mailbox.receive(Receive::one()).await.expect("received");
    let message = &batch.messages()[0];
    assert_eq!(message.body(), &json!({ "n": 1 }));
    assert_eq!(Value::from(message.id().to_string()), sent["id"], "the id of SQS");
    assert_eq!(message.reply_to(), Some("answers"));
    let attributes: Vec<_> = message.attributes().iter().collect();
    let expected = [
        ("count", "12"),
        ("photo", "AAH/"),
        (TYPES, "count=Number,photo=Binary.png"),
        ("tenant", "ünï"),
    ];
    assert_eq!(attributes, expected);
    assert_eq!(message.delivery_count(), 1);
    let age = pillarbox_core::Timestamp::now().since(message.enqueued_at());
    assert!(age.as_secs() < 600, "{age:?}");
    assert!(message.first_received_at().is_some());
}

async fn we_send_and_boto3_receives(server: &SqsServer) {
    let backend = open(server, "").await;
    let mut text = Outgoing::new(r#"{"n": 2}"#);
    text.reply_to = Some("answers".into());
    text.attributes = [
        ("tenant", "ünï"),
        ("photo", "AAH/"),
        ("count", "12"),
        (TYPES, "count=Number,photo=Binary"),
    ]
    .into_iter()
    .collect();
    let id = text.id.to_string();
    let target = queue(&backend, "to-boto3");
    one(target.send(vec![text]).await).expect("sent");
    let received = only(boto3(server, "receive", "to-boto3"));
    let expected = json!({
        "body": r#"{"n": 2}"#,
        "attributes": {
            "tenant": ["String", "ünï"],
            "photo": ["Binary", "AAH/"],
            "count": ["Number", "12"],
            "pillarbox.id": ["String", id],
            "pillarbox.reply_to": ["String", "answers"],
        },
    });
    assert_eq!(received, expected);

    let bytes = Outgoing::new(vec![0, 159, 255]);
    one(target.send(vec![bytes]).await).expect("sent");
    let received = only(boto3(server, "receive", "to-boto3"));
    assert_eq!(received["body"], "AJ//");
    assert_eq!(received["attributes"]["pillarbox.encoding"], json!(["String", "base64"]));
}

#[test]
fn boto3_and_pillarbox_read_messages_of_each_other() {
    for server in start_all() {
        println!("on {}", server.flavour().name());
        block_on(async {
            boto3_sends_and_we_receive(&server).await;
            we_send_and_boto3_receives(&server).await;
        });
    }
}

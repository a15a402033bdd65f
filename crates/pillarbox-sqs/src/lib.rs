//! Pillarbox mailboxes on AWS SQS.

//! Pillarbox mailboxes on Redis and Valkey: four keys a queue, one script a batch.

mod backend;
mod diagnose;
mod ears;
mod engine;
mod failure;
mod format;
mod hub;
mod lane;
mod line;
mod link;
mod operations;
mod options;
mod queue;
mod reply;
mod scripts;
mod tls;

pub use backend::RedisBackend;
pub use options::RedisOptions;
pub use redis;

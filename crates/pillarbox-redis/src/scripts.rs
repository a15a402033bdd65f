//! The scripts that the server runs. Each says in its file what it reads, writes and answers.

use std::sync::LazyLock;

/// A script, and the hash by which the server knows it once it has seen it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: &'static str,
    pub(crate) hash: String,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            let code = concat!(
                include_str!("../scripts/common.lua"),
                include_str!(concat!("../scripts/", $file, ".lua"))
            );
            Script { code, hash: redis::Script::new(code).get_hash().to_owned() }
        });
    };
}

script!(SEND, "send");
script!(RECEIVE, "receive");
script!(SETTLE, "settle");
script!(RELEASE, "release");
script!(COUNTS, "counts");
script!(PEEK, "peek");
script!(PURGE, "purge");
script!(FORGET, "forget");
script!(FIELDS, "fields");
script!(MEND, "mend");

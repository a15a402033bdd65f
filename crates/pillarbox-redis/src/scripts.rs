//! The scripts that the server runs. Each documents in its file what it reads, writes and answers.

use std::sync::LazyLock;

/// A script, and the hash by which a server that has loaded it knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) hash: String,
}

/// Parts, which replace a line `-- @name` of a script.
const PARTS: &[(&str, &str)] = &[
    ("due", include_str!("../scripts/due.lua")),
    ("expired", include_str!("../scripts/expired.lua")),
    ("give_back", include_str!("../scripts/give_back.lua")),
    ("persist", include_str!("../scripts/persist.lua")),
    ("extend_ttl", include_str!("../scripts/extend_ttl.lua")),
    ("next_due", include_str!("../scripts/next_due.lua")),
    ("promote", include_str!("../scripts/promote.lua")),
    ("remember", include_str!("../scripts/remember.lua")),
    ("renew", include_str!("../scripts/renew.lua")),
    ("version", include_str!("../scripts/version.lua")),
    ("wake", include_str!("../scripts/wake.lua")),
];

impl Script {
    /// Creates a script on the keys of a partition, which `header.lua` names.
    fn of_partition(text: &str) -> Self {
        Self::new(&[include_str!("../scripts/header.lua"), text])
    }

    /// Creates a script that names its keys itself.
    fn with_own_keys(text: &str) -> Self {
        Self::new(&[text])
    }

    fn new(texts: &[&str]) -> Self {
        let mut code = String::new();
        texts.iter().for_each(|text| append(text, &mut code));
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// Appends a text with its parts, and without comments.
fn append(text: &str, code: &mut String) {
    for line in text.lines() {
        let name = line.trim_start().strip_prefix("-- @");
        if let Some((_, part)) = PARTS.iter().find(|(part, _)| Some(*part) == name) {
            append(part, code);
        } else if !line.trim_start().starts_with("--") {
            code.push_str(line);
            code.push('\n');
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $make:ident $file:literal,)*) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::$make(include_str!(concat!("../scripts/", $file, ".lua"))));)*

        #[cfg(test)]
        const ALL: &[(&str, &LazyLock<Script>)] = &[$(($file, &$name)),*];
    };
}

scripts! {
    SEND = of_partition "send",
    RECEIVE = of_partition "receive",
    LOOK = of_partition "look",
    SETTLE = of_partition "settle",
    RELEASE = of_partition "release",
    COUNTS = of_partition "counts",
    PEEK = of_partition "peek",
    PURGE = of_partition "purge",
    FORGET = of_partition "forget",
    FIELDS = of_partition "fields",
    REPAIR = of_partition "repair",
    REGISTER = with_own_keys "register",
    UNREGISTER = with_own_keys "unregister",
    ENLISTED = with_own_keys "enlisted",
    LAYOUT = with_own_keys "layout",
    SPREAD = with_own_keys "spread",
    NARROW = with_own_keys "narrow",
    CONFIRM = with_own_keys "confirm",
    PUBLISH = with_own_keys "publish",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_assembled_and_each_is_documented() {
        for (name, script) in ALL {
            assert!(!script.code.contains("--"), "{name}: {}", script.code);
            let file = format!("{}/scripts/{name}.lua", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(file).unwrap();
            for heading in ["-- Reads", "-- Reply: ", "-- Idempotence: "] {
                assert!(text.contains(heading), "{name}.lua has no {heading}");
            }
        }
        assert!(SEND.code.contains("local pending, invisible"));
        assert!(SEND.code.contains("'PX'") && SEND.code.contains("'PUBLISH'"));
        assert!(!CONFIRM.code.contains("invisible"));
        let max_bytes = format!("most_bytes = {}\n", crate::operations::MAX_DELIVERED_BYTES);
        assert!(RECEIVE.code.contains(&max_bytes));
    }
}

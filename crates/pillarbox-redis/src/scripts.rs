//! The scripts that the server runs. Each says in its file what it reads, writes and answers.

use std::sync::LazyLock;

/// A script, and the hash by which the server knows it once it has seen it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) hash: String,
}

/// Texts that a line `-- @name` of a script stands for.
const PARTS: &[(&str, &str)] = &[
    ("due", include_str!("../scripts/due.lua")),
    ("expired", include_str!("../scripts/expired.lua")),
    ("give_back", include_str!("../scripts/give_back.lua")),
    ("lasting", include_str!("../scripts/lasting.lua")),
    ("live", include_str!("../scripts/live.lua")),
    ("next_due", include_str!("../scripts/next_due.lua")),
    ("promote", include_str!("../scripts/promote.lua")),
    ("remember", include_str!("../scripts/remember.lua")),
    ("renew", include_str!("../scripts/renew.lua")),
    ("version", include_str!("../scripts/version.lua")),
    ("wake", include_str!("../scripts/wake.lua")),
];

impl Script {
    /// A script on the keys of a partition.
    fn of_partition(text: &str) -> Self {
        Self::new(&[include_str!("../scripts/header.lua"), text])
    }

    /// A script on one key.
    fn of_key(text: &str) -> Self {
        Self::new(&[text])
    }

    fn new(texts: &[&str]) -> Self {
        let mut code = String::new();
        texts.iter().for_each(|text| write(text, &mut code));
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// Writes a text with its parts, and without comments, which are for readers of the files.
fn write(text: &str, code: &mut String) {
    for line in text.lines() {
        let name = line.trim_start().strip_prefix("-- @");
        if let Some((_, part)) = PARTS.iter().find(|(part, _)| Some(*part) == name) {
            write(part, code);
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
    MEND = of_partition "mend",
    LIST = of_key "list",
    UNLIST = of_key "unlist",
    ENLISTED = of_key "enlisted",
    LAYOUT = of_key "layout",
    SPREAD = of_key "spread",
    NARROW = of_key "narrow",
    CONFIRM = of_key "confirm",
    PUBLISH = of_key "publish",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_put_together_and_each_says_what_it_does() {
        for (name, script) in ALL {
            assert!(!script.code.contains("--"), "{name}: {}", script.code);
            let file = format!("{}/scripts/{name}.lua", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(file).unwrap();
            for heading in ["-- Reads", "-- Reply: ", "-- Twice: "] {
                assert!(text.contains(heading), "{name}.lua does not say {heading}");
            }
        }
        assert!(SEND.code.contains("local pending, invisible"));
        assert!(SEND.code.contains("'PX'") && SEND.code.contains("'PUBLISH'"));
        assert!(!CONFIRM.code.contains("invisible"));
        let most_bytes = format!("most_bytes = {}\n", crate::operations::MOST_BYTES);
        assert!(RECEIVE.code.contains(&most_bytes));
    }
}

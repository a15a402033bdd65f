//! The tests and files that docs/security.md names as evidence exist.

use crate::common::{quoted, read, root, rust_files, table};

#[test]
fn the_evidence_of_the_threat_model_exists() {
    let page = read("docs/security.md");
    let sources: String = rust_files().into_iter().map(|(_, text)| text).collect();
    let mut checked = 0;
    for section in page.split("\n## ").skip(1) {
        for row in table(section, "| attack | what stops it | shown by |") {
            assert_eq!(row.len(), 3, "{row:?}");
            let evidence = quoted(row[2]);
            assert!(!evidence.is_empty(), "nothing shows: {}", row[0]);
            for name in evidence {
                let exists = match name.contains('/') {
                    true => root().join(name).exists(),
                    false => sources.contains(&format!("fn {name}(")),
                };
                assert!(exists, "there is no {name}: {}", row[0]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 40, "{checked}");
}

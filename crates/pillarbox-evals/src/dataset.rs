//! Datasets of samples, read from JSON lines.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An input and the expected output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample<I, E> {
    /// Id, unique in its dataset.
    #[serde(deserialize_with = "sample_id")]
    pub id: String,
    /// Input of the adapter.
    pub input: I,
    /// What the evaluator compares the output with.
    pub expected: E,
    /// Other fields of the line. They are only shown in reports.
    #[serde(flatten, default)]
    pub metadata: BTreeMap<String, Value>,
}

impl<I, E> Sample<I, E> {
    /// Creates a sample.
    pub fn new(id: impl Into<String>, input: I, expected: E) -> Self {
        Self { id: id.into(), input, expected, metadata: BTreeMap::new() }
    }
}

/// Samples with unique ids.
///
/// In a file of JSON lines:
///
/// ```text
/// {"id": "capital-fr", "input": "The capital of France?", "expected": "Paris"}
/// {"input": "The capital of Peru?", "expected": "Lima", "source": "quiz 7"}
/// ```
///
/// The id of a sample without an `id` is the number of its line. Empty lines are skipped. Every other invalid line is
/// reported with its number.
///
/// ```
/// use pillarbox_evals::Dataset;
///
/// let text = r#"{"input": 2, "expected": 4}
/// {"input": "three", "expected": 9}
/// {"input": 4}"#;
/// let error = Dataset::<u32, u32>::from_jsonl(text.as_bytes()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "2 of 3 lines are not valid samples:\n  \
///      line 2, column 17: invalid type: string \"three\", expected u32\n  \
///      line 3, column 12: missing field `expected`"
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset<I, E> {
    samples: Vec<Sample<I, E>>,
}

impl<I, E> Dataset<I, E> {
    /// Creates a dataset of these samples.
    ///
    /// # Errors
    ///
    /// If there is no sample, two have the same id, or an id is empty.
    pub fn new(samples: impl IntoIterator<Item = Sample<I, E>>) -> Result<Self, DatasetError> {
        let mut builder = DatasetBuilder::new("sample");
        for (index, sample) in samples.into_iter().enumerate() {
            builder.add(index + 1, sample);
        }
        builder.finish()
    }

    /// Returns the samples, in order.
    pub fn samples(&self) -> &[Sample<I, E>] {
        &self.samples
    }

    /// Iterates over the samples, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Sample<I, E>> {
        self.samples.iter()
    }

    /// Returns the number of samples, which is at least one.
    #[expect(clippy::len_without_is_empty, reason = "a dataset is never empty")]
    pub fn len(&self) -> usize {
        self.samples.len()
    }
}

impl<I: DeserializeOwned, E: DeserializeOwned> Dataset<I, E> {
    /// Reads samples from JSON lines.
    ///
    /// # Errors
    ///
    /// If a line is not a sample or repeats an id, or there is no sample. The error names all of them.
    pub fn from_jsonl(mut lines: impl BufRead) -> Result<Self, DatasetError> {
        let mut builder = DatasetBuilder::new("line");
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = lines.read_until(b'\n', &mut line);
            if read.map_err(|error| DatasetError::Unreadable { path: None, error })? == 0 {
                break;
            }
            let text = if number == 1 { line.strip_prefix(b"\xEF\xBB\xBF") } else { None };
            let text = text.unwrap_or(&line).trim_ascii();
            if text.is_empty() {
                continue;
            }
            match serde_json::from_slice::<SampleLine<I, E>>(text) {
                Ok(read) => {
                    builder.is_numbered = read.id.is_none();
                    builder.add(number, read.into_sample(number));
                }
                Err(error) => builder.bad(number, Some(error.column()), without_position(&error)),
            }
        }
        builder.finish()
    }

    /// Reads samples from a file of JSON lines.
    ///
    /// # Errors
    ///
    /// The same as [`from_jsonl`](Self::from_jsonl), and if the file cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        let here = |error| DatasetError::Unreadable { path: Some(path.to_owned()), error };
        let file = File::open(path).map_err(here)?;
        Self::from_jsonl(BufReader::new(file)).map_err(|error| match error {
            DatasetError::Unreadable { error, .. } => here(error),
            DatasetError::Bad { lines, of, unit, .. } => {
                DatasetError::Bad { path: Some(path.to_owned()), lines, of, unit }
            }
            DatasetError::Empty { .. } => DatasetError::Empty { path: Some(path.to_owned()) },
        })
    }
}

impl<'a, I, E> IntoIterator for &'a Dataset<I, E> {
    type Item = &'a Sample<I, E>;
    type IntoIter = std::slice::Iter<'a, Sample<I, E>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Deserialized form of a line.
#[derive(Deserialize)]
#[serde(expecting = "a sample: an object with `input` and `expected`")]
struct SampleLine<I, E> {
    #[serde(default, deserialize_with = "some_sample_id")]
    id: Option<String>,
    input: I,
    expected: E,
    #[serde(flatten)]
    metadata: BTreeMap<String, Value>,
}

impl<I, E> SampleLine<I, E> {
    fn into_sample(self, number: usize) -> Sample<I, E> {
        let Self { id, input, expected, metadata } = self;
        Sample { id: id.unwrap_or_else(|| number.to_string()), input, expected, metadata }
    }
}

/// An id is a string or an integer.
#[derive(Deserialize)]
#[serde(untagged, expecting = "invalid `id`: neither a string nor an integer")]
enum RawSampleId {
    Text(String),
    Number(i64),
}

fn sample_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match RawSampleId::deserialize(deserializer)? {
        RawSampleId::Text(text) => text,
        RawSampleId::Number(number) => number.to_string(),
    })
}

fn some_sample_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    sample_id(deserializer).map(Some)
}

/// Returns the text of an error without its position: each line is parsed by itself, so the line would always be 1.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Collects samples and invalid lines.
struct DatasetBuilder<I, E> {
    samples: Vec<Sample<I, E>>,
    /// Line of each id.
    seen: HashMap<String, usize>,
    bad: Vec<BadLine>,
    /// Whether the id of the current sample is its number.
    is_numbered: bool,
    unit: &'static str,
}

impl<I, E> DatasetBuilder<I, E> {
    fn new(unit: &'static str) -> Self {
        Self {
            samples: Vec::new(),
            seen: HashMap::new(),
            bad: Vec::new(),
            is_numbered: false,
            unit,
        }
    }

    fn add(&mut self, number: usize, sample: Sample<I, E>) {
        if sample.id.is_empty() {
            return self.bad(number, None, "its id is empty".to_owned());
        }
        if let Some(name) =
            ["id", "input", "expected"].iter().find(|name| sample.metadata.contains_key(**name))
        {
            return self.bad(number, None, format!("`{name}` is also in its metadata"));
        }
        if let Some(first) = self.seen.get(&sample.id) {
            let whose = if self.is_numbered { "it has no id, and its number" } else { "its id" };
            let text = format!("{whose} {:?} is the id of {} {first}", sample.id, self.unit);
            return self.bad(number, None, text);
        }
        self.seen.insert(sample.id.clone(), number);
        self.samples.push(sample);
    }

    fn bad(&mut self, line: usize, column: Option<usize>, reason: String) {
        self.bad.push(BadLine { line, column, reason });
    }

    fn finish(self) -> Result<Dataset<I, E>, DatasetError> {
        let of = self.samples.len() + self.bad.len();
        if !self.bad.is_empty() {
            return Err(DatasetError::Bad { path: None, lines: self.bad, of, unit: self.unit });
        }
        if of == 0 {
            return Err(DatasetError::Empty { path: None });
        }
        Ok(Dataset { samples: self.samples })
    }
}

/// A line that is not a valid sample.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// Column, if known.
    pub column: Option<usize>,
    /// What is wrong with the line.
    pub reason: String,
}

/// Error when a dataset is created.
#[non_exhaustive]
pub enum DatasetError {
    /// It cannot be read.
    Unreadable {
        /// The file, if it is one.
        path: Option<PathBuf>,
        /// The error.
        error: std::io::Error,
    },
    /// Some lines are not valid samples.
    Bad {
        /// The file, if it is one.
        path: Option<PathBuf>,
        /// All invalid lines.
        lines: Vec<BadLine>,
        /// Number of lines, without empty ones.
        of: usize,
        /// Unit of the numbers: line or sample.
        unit: &'static str,
    },
    /// There are no samples.
    Empty {
        /// The file, if it is one.
        path: Option<PathBuf>,
    },
}

pillarbox_core::__error_debug!(enum DatasetError {
    Unreadable { path, error },
    Bad { path, lines, of, unit },
    Empty { path },
});

/// Number of invalid lines in the text of an error.
const SHOWN: usize = 20;

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unreadable { path, .. } | Self::Bad { path, .. } | Self::Empty { path }) = self;
        if let Some(path) = path {
            write!(f, "{}: ", path.display())?;
        }
        match self {
            Self::Unreadable { error, .. } => write!(f, "cannot read the samples: {error}"),
            Self::Empty { .. } => f.write_str("there are no samples"),
            Self::Bad { lines, of, unit, .. } => {
                match lines.len() {
                    1 => write!(f, "1 of {of} {unit}s is not a valid sample:")?,
                    bad => write!(f, "{bad} of {of} {unit}s are not valid samples:")?,
                }
                for BadLine { line, column, reason } in lines.iter().take(SHOWN) {
                    write!(f, "\n  {unit} {line}")?;
                    if let Some(column) = column {
                        write!(f, ", column {column}")?;
                    }
                    write!(f, ": {reason}")?;
                }
                match lines.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
        }
    }
}

impl std::error::Error for DatasetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::Bad { .. } | Self::Empty { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Dataset<Value, Value>, DatasetError> {
        Dataset::from_jsonl(text.as_bytes())
    }

    #[test]
    fn samples_are_read_with_the_other_fields_of_their_lines() {
        let text = "\u{FEFF}{\"id\": \"a\", \"input\": 1, \"expected\": 2, \"topic\": \"sums\"}\r\n\
                    \n  \n{\"input\": null, \"expected\": null}\n\
                    {\"id\": 77, \"input\": \"last, without a newline\", \"expected\": []}";
        let dataset = read(text).unwrap();
        let ids: Vec<_> = dataset.iter().map(|sample| &*sample.id).collect();
        assert_eq!(ids, ["a", "4", "77"]);
        assert_eq!(dataset.samples()[0].metadata["topic"], json!("sums"));
        assert_eq!(dataset.samples()[1].input, Value::Null);
    }

    #[test]
    fn every_invalid_line_is_reported() {
        let text = "{\"input\": 1, \"expected\": 1}\nnot json\n[1]\n{\"expected\": 1}\n\
                    {\"id\": \"1\", \"input\": 1, \"expected\": 1}\n{\"id\": \"\", \"input\": 1, \"expected\": 1}\n\
                    {\"id\": {}, \"input\": 1, \"expected\": 1}\n{\"input\": 1, \"expected\": 1} x\n";
        let DatasetError::Bad { lines, of, .. } = read(text).unwrap_err() else { panic!() };
        assert_eq!(of, 8);
        let reported: Vec<_> = lines.iter().map(|bad| (bad.line, &*bad.reason)).collect();
        assert_eq!(reported[0], (2, "expected ident"));
        assert_eq!(reported[1].0, 3);
        assert_eq!(reported[2], (4, "missing field `input`"));
        assert_eq!(reported[3], (5, "its id \"1\" is the id of line 1"));
        assert_eq!(reported[4], (6, "its id is empty"));
        assert!(reported[5].1.contains("neither a string nor an integer"), "{reported:?}");
        assert_eq!(reported[6], (8, "trailing characters"));
        assert_eq!(reported.len(), 7);
    }

    #[test]
    fn a_line_that_is_not_utf8_is_invalid() {
        let bytes = b"{\"input\": \"\xFF\", \"expected\": 1}\n{\"input\": 1, \"expected\": 1}\n";
        let error = Dataset::<Value, Value>::from_jsonl(&bytes[..]).unwrap_err();
        assert!(
            error.to_string().starts_with("1 of 2 lines is not a valid sample:\n  line 1"),
            "{error}"
        );
    }

    #[test]
    fn a_long_list_of_invalid_lines_is_cut_in_the_text() {
        let error = read(&"x\n".repeat(50)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("line 20") && !text.contains("line 21"), "{text}");
        assert!(text.ends_with("and 30 more"), "{text}");
        let DatasetError::Bad { lines, .. } = error else { panic!() };
        assert_eq!(lines.len(), 50);
    }

    #[test]
    fn a_dataset_without_samples_is_rejected() {
        assert!(matches!(read("\n\n").unwrap_err(), DatasetError::Empty { .. }));
        let missing = Dataset::<Value, Value>::from_file("/no/such/file").unwrap_err();
        assert!(missing.to_string().starts_with("/no/such/file: cannot read"), "{missing}");
    }

    #[test]
    fn samples_of_a_program_need_unique_ids() {
        let twice = [Sample::new("a", 1, 1), Sample::new("a", 2, 2)];
        let error = Dataset::new(twice).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 of 2 samples is not a valid sample:\n  sample 2: its id \"a\" is the id of sample 1"
        );
    }

    #[test]
    fn a_sample_survives_a_round_trip() {
        let mut sample = Sample::new("a", json!({"x": 1}), json!("y"));
        sample.metadata.insert("topic".to_owned(), json!("sums"));
        let text = serde_json::to_string(&sample).unwrap();
        assert_eq!(text, r#"{"id":"a","input":{"x":1},"expected":"y","topic":"sums"}"#);
        assert_eq!(read(&text).unwrap().samples(), [sample]);
    }
}

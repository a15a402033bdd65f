//! Message attributes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

/// Names and values beside the body of a message, in order of name.
///
/// Clones share the map, so a redelivery copies no attributes. An empty set allocates nothing.
///
/// ```
/// use pillarbox_core::Attributes;
///
/// let attributes: Attributes = [("tenant", "acme"), ("priority", "low")].into_iter().collect();
/// assert_eq!(attributes.get("tenant"), Some("acme"));
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Attributes(Option<Arc<BTreeMap<String, String>>>);

static EMPTY: LazyLock<BTreeMap<String, String>> = LazyLock::new(BTreeMap::new);

impl Attributes {
    /// Prefix of the names of attributes that Pillarbox itself sets.
    pub const OWN: &str = "pillarbox.";

    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.map().get(name).map(String::as_str)
    }

    /// Sets `name` to `value`, replacing an earlier value.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let map = self.0.get_or_insert_default();
        Arc::make_mut(map).insert(name.into(), value.into());
    }

    /// Removes `name` and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let map = self.0.as_mut().filter(|map| map.contains_key(name))?;
        Arc::make_mut(map).remove(name)
    }

    /// Returns all names and values, in order of name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.map().iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Returns whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    fn map(&self) -> &BTreeMap<String, String> {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl From<BTreeMap<String, String>> for Attributes {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self((!map.is_empty()).then(|| Arc::new(map)))
    }
}

impl From<Attributes> for BTreeMap<String, String> {
    fn from(attributes: Attributes) -> Self {
        attributes.0.map(Arc::unwrap_or_clone).unwrap_or_default()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        pairs.collect::<BTreeMap<_, _>>().into()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_does_not_reach_a_clone() {
        let mut one: Attributes = [("a", "1")].into_iter().collect();
        let other = one.clone();
        one.insert("a", "2");
        assert_eq!((one.get("a"), other.get("a")), (Some("2"), Some("1")));
    }

    #[test]
    fn a_removal_does_not_reach_a_clone() {
        let mut attributes = Attributes::new();
        assert_eq!(attributes.remove("tenant"), None);
        attributes.insert("tenant", "acme");
        let other = attributes.clone();
        assert_eq!(attributes.remove("tenant").as_deref(), Some("acme"));
        assert_eq!((attributes.len(), other.get("tenant")), (0, Some("acme")));
    }

    #[test]
    fn empty_sets_are_equal() {
        assert_eq!(Attributes::new(), BTreeMap::new().into());
        assert_eq!(serde_json::to_string(&Attributes::new()).unwrap(), "{}");
    }
}

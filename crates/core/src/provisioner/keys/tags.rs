//! Tags of keys: when two sets mean the same, and the hash that status records.

use std::collections::BTreeMap;

use coder_k8s_api::shortened;

use crate::{intervals::MAX_TAGS_COLUMN, names::fnv1a};

/// Tags of a key, as the spec has them or as coderd lists them.
pub type Tags = BTreeMap<String, String>;

/// The hash of tags, as the Go operator computes it: a pool that goes back to it keeps its key.
///
/// 32 bits can hide a change, so that a different hash only causes a query. The tags that coderd lists decide.
pub fn hash(tags: &Tags) -> String {
    let mut bytes = Vec::new();
    for (name, value) in tags {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    format!("{:08x}", fnv1a(&bytes))
}

/// Whether two sets of tags make the same daemons: coderd drops empty values and decides `scope` and `owner` itself.
pub fn mean_the_same(one: &Tags, two: &Tags) -> bool {
    one.iter().filter(matters).eq(two.iter().filter(matters))
}

/// The tags as a column of `kubectl get` shows them: those that make a difference to coderd, in one short line.
pub fn shown(tags: &Tags) -> String {
    let all = tags.iter().filter(matters).map(|(name, value)| format!("{name}={value}"));
    let line = all.collect::<Vec<_>>().join(",");
    if line.is_empty() {
        return "<none>".to_owned();
    }
    // A tag may hold any character, and the line is printed on terminals.
    shortened(line.replace(|c: char| c.is_control(), "?"), MAX_TAGS_COLUMN)
}

fn matters((name, value): &(&String, &String)) -> bool {
    !(value.is_empty() || (*name == "scope" && *value == "organization"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(list: &[(&str, &str)]) -> Tags {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn hashes_are_those_of_the_go_operator() {
        for (list, expected) in [
            (&[][..], "811c9dc5"),
            (&[("region", "us-east")][..], "a3fd2d4d"),
            (&[("region", "eu-west")][..], "bcb0b321"),
            (&[("scope", "organization")][..], "cf1b2b92"),
            (&[("b", "2"), ("a", "1")][..], "020d940d"),
            (&[("region", "eu")][..], "be9dde2b"),
        ] {
            assert_eq!(hash(&tags(list)), expected);
        }
    }

    #[test]
    fn a_column_shows_the_tags_that_make_a_difference_in_one_short_line() {
        for (list, expected) in [
            (&[][..], "<none>"),
            (&[("scope", "organization"), ("owner", ""), ("x", "")][..], "<none>"),
            (&[("gpu", "yes"), ("cluster", "eu")][..], "cluster=eu,gpu=yes"),
            (&[("a", "line\nbreak\u{1b}[31m")][..], "a=line?break?[31m"),
        ] {
            assert_eq!(shown(&tags(list)), expected);
        }
        let long = shown(&tags(&[("cluster", &"ä".repeat(100)), ("b", "2")]));
        assert!(
            long.len() <= MAX_TAGS_COLUMN && long.ends_with('…') && long.starts_with("b=2,cluster=ä"),
            "{long}"
        );
    }

    #[test]
    fn what_coderd_decides_itself_makes_no_difference() {
        let plain = tags(&[("region", "eu")]);
        let wordy = tags(&[("region", "eu"), ("scope", "organization"), ("owner", ""), ("x", "")]);
        assert!(mean_the_same(&plain, &wordy));
        assert!(mean_the_same(&tags(&[]), &tags(&[("scope", "")])));
        assert!(!mean_the_same(&plain, &tags(&[("region", "us")])));
        assert!(!mean_the_same(&plain, &tags(&[])));
    }
}

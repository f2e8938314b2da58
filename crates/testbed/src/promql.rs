//! What a PromQL expression names: metrics, the labels by which it selects series, and the labels by which it groups them.
//!
//! It knows enough of the language for the alerts and the dashboard of the operator, and refuses what it does not know.
//! Whether an expression is valid is for promtool to say.

/// A selector of series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Name of the metric, with `_total`, `_bucket` and the like.
    pub metric: String,
    /// Its matchers, in the order of the expression.
    pub matchers: Vec<Matcher>,
}

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    /// Name of the label.
    pub label: String,
    /// `=`, `!=`, `=~` or `!~`.
    pub operator: String,
    /// The value between the quotes, escapes included.
    pub value: String,
}

/// What an expression names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mentions {
    /// The selectors.
    pub selectors: Vec<Selector>,
    /// The labels of `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub grouping: Vec<String>,
}

const AGGREGATIONS: [&str; 12] = [
    "avg",
    "bottomk",
    "count",
    "count_values",
    "group",
    "max",
    "min",
    "quantile",
    "stddev",
    "stdvar",
    "sum",
    "topk",
];
const GROUPINGS: [&str; 6] = ["by", "group_left", "group_right", "ignoring", "on", "without"];
const WORDS: [&str; 9] = ["and", "atan2", "bool", "end", "inf", "nan", "offset", "or", "unless"];

/// Lists what an expression names. The error says what is not understood.
pub fn mentions(expression: &str) -> Result<Mentions, String> {
    let mut scanner = Scanner { rest: expression };
    let mut found = Mentions::default();
    while let Some(first) = scanner.peek() {
        if first.is_ascii_alphabetic() || first == '_' {
            let word = scanner.word();
            scanner.skip_space();
            if GROUPINGS.contains(&word) {
                found.grouping.extend(scanner.label_list()?);
            } else if AGGREGATIONS.contains(&word)
                || WORDS.contains(&word.to_ascii_lowercase().as_str())
                || scanner.peek() == Some('(')
            {
                // A function, an operator or a number.
            } else {
                let matchers = scanner.matchers()?;
                found.selectors.push(Selector { metric: word.to_owned(), matchers });
            }
        } else if first.is_ascii_digit() {
            // A number or a duration, with the letters of its unit.
            scanner.word();
        } else if first == '"' || first == '\'' || first == '`' {
            scanner.string()?;
        } else if first == '{' || first == '$' {
            return Err(format!("{:?} is not understood", scanner.rest));
        } else {
            scanner.advance(first.len_utf8());
        }
    }
    Ok(found)
}

struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn word(&mut self) -> &'a str {
        let is_inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        let end = self.rest.find(|c| !is_inside(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        self.skip_space();
        self.rest = self
            .rest
            .strip_prefix(token)
            .ok_or_else(|| format!("{token} expected before {:?}", self.rest))?;
        self.skip_space();
        Ok(())
    }

    /// `(a, b)`, or nothing after `group_left`.
    fn label_list(&mut self) -> Result<Vec<String>, String> {
        let mut labels = Vec::new();
        if self.peek() != Some('(') {
            return Ok(labels);
        }
        self.expect("(")?;
        while self.peek() != Some(')') {
            let label = self.word();
            if label.is_empty() {
                return Err(format!("a label expected before {:?}", self.rest));
            }
            labels.push(label.to_owned());
            self.skip_space();
            if self.peek() == Some(',') {
                self.expect(",")?;
            }
        }
        self.expect(")")?;
        Ok(labels)
    }

    /// `{a="b", c!~"d"}`, or nothing.
    fn matchers(&mut self) -> Result<Vec<Matcher>, String> {
        let mut matchers = Vec::new();
        if self.peek() != Some('{') {
            return Ok(matchers);
        }
        self.expect("{")?;
        while self.peek() != Some('}') {
            let label = self.word().to_owned();
            self.skip_space();
            let operator =
                ["=~", "!~", "!=", "="].into_iter().find(|operator| self.rest.starts_with(operator));
            let operator = operator.ok_or_else(|| format!("an operator expected before {:?}", self.rest))?;
            self.expect(operator)?;
            let value = self.string()?.to_owned();
            matchers.push(Matcher { label, operator: operator.to_owned(), value });
            self.skip_space();
            if self.peek() == Some(',') {
                self.expect(",")?;
            }
        }
        self.expect("}")?;
        Ok(matchers)
    }

    /// A string between quotes.
    fn string(&mut self) -> Result<&'a str, String> {
        let error = || format!("a string expected before {:?}", self.rest);
        let quote = self.peek().filter(|c| matches!(c, '"' | '\'' | '`')).ok_or_else(error)?;
        let inside = self.rest.get(1..).unwrap_or_default();
        let mut is_escaped = false;
        let end = inside.find(|c| {
            let ends = c == quote && !is_escaped;
            is_escaped = c == '\\' && !is_escaped && quote != '`';
            ends
        });
        let end = end.ok_or_else(|| format!("a string without an end: {:?}", self.rest))?;
        let value = inside.get(..end).unwrap_or_default();
        self.advance(end + 2);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(expression: &str) -> (Vec<String>, Vec<String>) {
        let found = mentions(expression).unwrap();
        (found.selectors.into_iter().map(|selector| selector.metric).collect(), found.grouping)
    }

    #[test]
    fn metrics_and_grouping_labels_are_told_from_functions_and_words() {
        for (expression, metrics, grouping) in [
            ("up", vec!["up"], vec![]),
            ("1 - avg(up) > bool 0.5", vec!["up"], vec![]),
            (
                "sum by (a, b) (rate(x_total[5m])) / on (a) group_left y offset 1h",
                vec!["x_total", "y"],
                vec!["a", "b", "a"],
            ),
            ("max by (a) (x) - time() >= 7 * 86400 < 1e9 unless z or vector(0)", vec!["x", "z"], vec!["a"]),
            ("topk(5, sum without (pod) (x{a=\"sum by (b)\"}))", vec!["x"], vec!["pod"]),
            ("label_replace(x, \"y\", \"$1\", \"z\", \"(.*)\")", vec!["x"], vec![]),
        ] {
            let found = names(expression);
            assert_eq!(
                found,
                (
                    metrics.iter().map(ToString::to_string).collect(),
                    grouping.iter().map(ToString::to_string).collect()
                ),
                "{expression}"
            );
        }
    }

    #[test]
    fn matchers_are_read_with_their_values() {
        let found = mentions(r#"x{a="b", c!~"d|\"e}", f=~'g',} > 0"#).unwrap();
        let matcher = |label: &str, operator: &str, value: &str| Matcher {
            label: label.into(),
            operator: operator.into(),
            value: value.into(),
        };
        let matchers = vec![matcher("a", "=", "b"), matcher("c", "!~", r#"d|\"e}"#), matcher("f", "=~", "g")];
        assert_eq!(found.selectors, [Selector { metric: "x".into(), matchers }]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for expression in
            ["{__name__=\"x\"}", "x{a}", "x{a=\"b", "x[$__rate_interval]", "sum by (", "x{=\"b\"}x{a==\"b\"}"]
        {
            assert!(mentions(expression).is_err(), "{expression}");
        }
    }
}

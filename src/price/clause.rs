//! How genai-prices says which names a model goes by.

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Clause {
    Equals(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Regex(String),
    Or(Vec<Self>),
    And(Vec<Self>),
}

impl Clause {
    pub(super) fn accepts(&self, name: &str) -> bool {
        match self {
            Self::Equals(text) => name == text,
            Self::StartsWith(text) => name.starts_with(text.as_str()),
            Self::EndsWith(text) => name.ends_with(text.as_str()),
            Self::Contains(text) => name.contains(text.as_str()),
            Self::Regex(text) => glob_of(text).is_some_and(|glob| {
                globset::Glob::new(&glob).is_ok_and(|glob| glob.compile_matcher().is_match(name))
            }),
            Self::Or(clauses) => clauses.iter().any(|clause| clause.accepts(name)),
            Self::And(clauses) => clauses.iter().all(|clause| clause.accepts(name)),
        }
    }

    /// The globs that match the same names. A conjunction, and a regular expression beyond [`glob_of`], match
    /// none: unpriced rather than wrong.
    pub(super) fn globs(&self, into: &mut Vec<String>) {
        match self {
            Self::Equals(text) => into.push(globset::escape(text)),
            Self::StartsWith(text) => into.push(format!("{}*", globset::escape(text))),
            Self::EndsWith(text) => into.push(format!("*{}", globset::escape(text))),
            Self::Contains(text) => into.push(format!("*{}*", globset::escape(text))),
            Self::Regex(text) => into.extend(glob_of(text)),
            Self::Or(clauses) => clauses.iter().for_each(|clause| clause.globs(into)),
            Self::And(_) => {}
        }
    }
}

/// An anchored regular expression of literals, classes and counted digits as a glob:
/// `^acme-1-\d{4}$` is `acme-1-[0-9][0-9][0-9][0-9]`.
fn glob_of(regex: &str) -> Option<String> {
    let mut rest = regex.strip_prefix('^')?;
    let mut glob = String::new();
    while let Some(letter) = rest.chars().next() {
        rest = rest.get(letter.len_utf8()..)?;
        match letter {
            '$' if rest.is_empty() => return Some(glob),
            '\\' => {
                let escaped = rest.chars().next()?;
                rest = rest.get(escaped.len_utf8()..)?;
                if escaped == 'd' {
                    let counted = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                    let (count, after) = match counted {
                        Some((count, after)) => {
                            (count.parse::<usize>().ok().filter(|count| *count <= 32)?, after)
                        }
                        None => (1, rest),
                    };
                    rest = after;
                    glob.push_str(&"[0-9]".repeat(count));
                } else if escaped.is_alphanumeric() {
                    return None;
                } else {
                    glob.push_str(&globset::escape(&escaped.to_string()));
                }
            }
            '[' => {
                let (class, after) = rest.split_once(']')?;
                if class.is_empty()
                    || !class.chars().all(|letter| letter.is_alphanumeric() || "-@".contains(letter))
                {
                    return None;
                }
                rest = after;
                glob.push('[');
                glob.push_str(class);
                glob.push(']');
            }
            letter if letter.is_alphanumeric() || "-_/:@ ".contains(letter) => glob.push(letter),
            _ => return None,
        }
        if rest.starts_with(['*', '+', '?', '{']) {
            return None;
        }
    }
    glob.push('*');
    Some(glob)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_as_globs() {
        for (regex, glob) in [
            (r"^acme-1\.5-\d{2}-\d$", Some("acme-1.5-[0-9][0-9]-[0-9]")),
            ("^o[134]", Some("o[134]*")),
            (r"^a[-@]\d{1}$", Some("a[-@][0-9]")),
            (r"^a\[fast=true\]$", None),
            (r"^a\[x\]$", Some("a[[]x[]]")),
            ("a", None),
            ("^(a|b)$", None),
            ("^a+$", None),
            (r"^\d+$", None),
            (r"^\w$", None),
            (r"^a\d{999999999}$", None),
        ] {
            assert_eq!(glob_of(regex).as_deref(), glob, "{regex}");
        }
    }
}

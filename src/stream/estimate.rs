//! Tokens of a piece of text, where nobody counted them.

/// Letters of a word that is one token in most vocabularies of today.
const WORD: u64 = 12;
/// Letters of each token that a longer word is cut into.
const SYLLABLE: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    /// Letters of alphabets that vocabularies hold fewer words of.
    ForeignWord,
    /// Signs that are words of their own.
    Ideogram,
    Digit,
    Blank,
    Mark,
    Picture,
}

impl Kind {
    fn of(letter: char) -> Self {
        match letter {
            'a'..='z' | 'A'..='Z' => Self::Word,
            '0'..='9' => Self::Digit,
            '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' => Self::Ideogram,
            _ if letter.is_whitespace() => Self::Blank,
            _ if letter.is_ascii() => Self::Mark,
            _ if letter.is_alphabetic() => Self::ForeignWord,
            '\u{1F000}'..='\u{1FFFF}' => Self::Picture,
            _ => Self::Mark,
        }
    }

    /// Tokens of a run of `length` letters of this kind.
    const fn tokens(self, length: u64) -> u64 {
        match self {
            Self::Word if length <= WORD => 1,
            Self::Word => length.div_ceil(SYLLABLE),
            Self::ForeignWord => length.div_ceil(4),
            Self::Ideogram => (length * 2).div_ceil(3),
            Self::Digit | Self::Mark => length.div_ceil(3),
            Self::Blank => 1,
            Self::Picture => length * 2,
        }
    }
}

/// Tokens of `text`, near what current vocabularies (o200k and its like) make of it; at least 1 of any text.
///
/// One delta of a stream holds whole tokens, so deltas are counted one by one and added up: exact where a server
/// sends each token as it comes.
pub fn tokens(text: &str) -> u64 {
    let mut total = 0;
    let mut run: Option<(Kind, u64)> = None;
    // A single blank before a word is part of its token.
    let mut close = |run: (Kind, u64), next: Option<Kind>| {
        let absorbed = run == (Kind::Blank, 1)
            && matches!(next, Some(Kind::Word | Kind::ForeignWord | Kind::Mark | Kind::Ideogram));
        if !absorbed {
            total += run.0.tokens(run.1);
        }
    };
    for letter in text.chars() {
        let kind = Kind::of(letter);
        match &mut run {
            Some((current, length)) if *current == kind => *length += 1,
            Some(ended) => {
                close(*ended, Some(kind));
                run = Some((kind, 1));
            }
            None => run = Some((kind, 1)),
        }
    }
    if let Some(ended) = run {
        close(ended, None);
    }
    total
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_that_vocabularies_agree_with() {
        for (text, want) in [
            ("", 0),
            ("Hi", 1),
            (" expected", 1),
            ("All systems work as expected", 5),
            ("one two\n\nthree", 4),
            ("2026", 2),
            ("你好，世界", 5),
            ("{\"a\": 1}", 6),
            ("internationalization", 4),
        ] {
            assert_eq!(tokens(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_and_none_is_more_than_its_bytes(text in any::<String>()) {
            let count = tokens(&text);
            prop_assert_eq!(count > 0, !text.is_empty());
            prop_assert!(count <= text.len() as u64);
        }
    }
}

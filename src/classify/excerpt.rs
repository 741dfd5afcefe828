//! A short plain text from a body that may be anything.

/// Longest message that is kept of a well-formed error.
pub(crate) const MESSAGE_BYTES: usize = 4096;
/// Longest excerpt of a body that is not one.
const EXCERPT_BYTES: usize = 400;

/// At most `bytes` bytes, cut between characters.
pub(crate) fn cap(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let kept = text.get(..end).unwrap_or("");
    if kept.len() < text.len() { format!("{kept}…") } else { kept.to_owned() }
}

/// The first words of a text; of HTML, its title and text without tags.
pub(crate) fn of(body: &str) -> String {
    let mut words = String::new();
    let text = if body.trim_start().starts_with('<') { without_tags(body) } else { body.to_owned() };
    for word in text.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
        if words.len() > EXCERPT_BYTES {
            break;
        }
    }
    cap(&words, EXCERPT_BYTES)
}

/// Crude on purpose: what a person sees of an error page, not a document.
fn without_tags(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        text.push(' ');
        let name = after.get(..6).unwrap_or(after).to_ascii_lowercase();
        let end = match name.as_str() {
            "script" => "</script>",
            name if name.starts_with("style") => "</style>",
            _ => ">",
        };
        rest = after.split_once(end).map_or("", |(_, after)| after);
        if text.len() > 4 * EXCERPT_BYTES {
            break;
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn html_becomes_its_text() {
        let page = "<!DOCTYPE html><html><head><title>502: Bad gateway</title><style>a{b}</style>\
                    <script>x < y</script></head><body><h1>Error</h1>\n\n try <b>later</b></body></html>";
        assert_eq!(of(page), "502: Bad gateway Error try later");
        assert_eq!(of("<html"), "");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = of(&"é".repeat(1000));
        assert!(long.len() <= EXCERPT_BYTES + "…".len() && long.ends_with("é…"));
        assert_eq!(of("  a \n b "), "a b");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), bytes in 0usize..10, html in "[<>/a-z \u{e9}]{0,80}") {
            prop_assert!(cap(&text, bytes).len() <= bytes + "…".len());
            let _ = (of(&text), of(&html));
        }
    }
}

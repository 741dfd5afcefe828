//! A proxy's URL as it is configured.

use url::Url;

use crate::error::ConfigError;

const SCHEMES: &[&str] = &["http", "https", "socks5", "socks5h"];
const RULE: &str =
    "must be an http, https, socks5 or socks5h URL with a host, such as http://proxy.example.com:3128";

/// Reads the URL of a proxy. reqwest would take text without a scheme for a host, and refuse a scheme that it
/// does not know only when a request is sent.
pub(super) fn parse(text: &str) -> Result<Url, ConfigError> {
    let url =
        Url::parse(text).map_err(|error| ConfigError::new("proxy", "***", format!("{RULE} ({error})")))?;
    if !SCHEMES.contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
        return Err(ConfigError::new("proxy", shown(&url), RULE));
    }
    Ok(url)
}

/// The URL as far as it can hold no password. Without a host everything can: `user:password@host` is a URL
/// whose scheme is `user`.
fn shown(url: &Url) -> String {
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        return String::from("***");
    };
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}://{host}{port}", url.scheme())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_proxies_speak_are_taken() {
        for scheme in SCHEMES {
            let url = parse(&format!("{scheme}://user:secret@proxy.test:1080")).unwrap();
            assert_eq!((url.scheme(), url.password()), (*scheme, Some("secret")));
        }
    }

    #[test]
    fn others_are_refused_without_their_password() {
        for (text, value) in [
            ("ftp://user:secret@proxy.test:2121", "ftp://proxy.test:2121"),
            ("socks4://secret@proxy.test", "socks4://proxy.test"),
            ("file:///secret", "***"),
            ("user:secret@proxy.test:3128", "***"),
            ("proxy.test:3128", "***"),
            ("socks5:secret", "***"),
            ("http://user:secret@", "***"),
            ("proxy.test", "***"),
            ("", "***"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.field.as_str(), error.value.as_str()), ("proxy", value), "{text}");
            assert!(error.rule.starts_with(RULE) && !error.rule.contains("secret"), "{}", error.rule);
        }
    }
}

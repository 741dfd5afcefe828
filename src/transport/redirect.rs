//! Which redirects are followed, and with what.
//!
//! 307 and 308 repeat the request, body included. 301, 302 and 303 would turn a POST into a GET whose page is
//! no completion, so only GET and HEAD follow them. Credentials never cross to another origin (RFC 9110,
//! section 15.4).

use std::borrow::Cow;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, LOCATION, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, Method};
use url::Url;

use super::Request;

pub const MAX_HOPS: usize = 10;

const CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// The request that follows `request`'s redirect, or `None` where the answer itself is the result.
pub fn follow<'a>(request: &Request<'a>, status: u16, headers: &HeaderMap) -> Option<Request<'a>> {
    let safe = matches!(*request.method, Method::GET | Method::HEAD);
    if !(matches!(status, 307 | 308) || safe && matches!(status, 301..=303)) {
        return None;
    }
    let url = request.url.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    if !matches!(url.scheme(), "http" | "https") {
        return None;
    }
    let mut headers = request.headers.clone().into_owned();
    if url.origin() != request.url.origin() {
        for name in CREDENTIALS {
            headers.remove(name);
        }
    }
    headers.remove(CONTENT_LENGTH);
    Some(Request { url: Cow::Owned(url), headers: Cow::Owned(headers), ..request.clone() })
}

/// `scheme://host:port`, as shown to people and used as a key; never with user info, path or query.
pub fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;

    fn request(method: &Method) -> Request<'_> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer k"));
        headers.insert("api-key", HeaderValue::from_static("k"));
        headers.insert("x-other", HeaderValue::from_static("kept"));
        Request {
            method,
            url: Cow::Owned(Url::parse("https://a.test/v1/x").unwrap()),
            headers: Cow::Owned(headers),
            retry_count: None,
            body: Bytes::from_static(b"{}"),
            foreign: false,
        }
    }

    fn to(location: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))])
    }

    #[test]
    fn a_post_is_repeated_only_by_307_and_308() {
        for (status, followed) in
            [(301, false), (302, false), (303, false), (307, true), (308, true), (200, false)]
        {
            assert_eq!(
                follow(&request(&Method::POST), status, &to("/v1/y")).is_some(),
                followed,
                "status {status}"
            );
        }
        let next = follow(&request(&Method::POST), 308, &to("/v1/y")).unwrap();
        assert_eq!(
            (next.method, next.url.as_str(), next.body.as_ref()),
            (&Method::POST, "https://a.test/v1/y", &b"{}"[..])
        );
        assert!(next.headers.contains_key(AUTHORIZATION));
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        for location in [
            "https://b.test/v1/x",
            "http://a.test/v1/x",
            "https://a.test:8443/v1/x",
            "//b.test/",
            "https://a.test.b.test/",
        ] {
            let next = follow(&request(&Method::POST), 307, &to(location)).unwrap();
            assert!(!next.headers.contains_key(AUTHORIZATION), "{location}");
            assert!(!next.headers.contains_key("api-key"), "{location}");
            assert!(next.headers.contains_key("x-other"), "{location}");
        }
    }

    #[test]
    fn what_is_no_web_address_is_not_followed() {
        for location in ["ftp://a.test/", "file:///etc/passwd", "http://"] {
            assert!(follow(&request(&Method::GET), 302, &to(location)).is_none(), "{location}");
        }
        assert!(follow(&request(&Method::GET), 302, &HeaderMap::new()).is_none());
    }
}

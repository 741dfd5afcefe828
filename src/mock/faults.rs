//! Faults by name.

use super::answer::{Close, Cut, End};
use super::reply::Ending;
use super::scripted::{Content, Scripted};
use http::StatusCode;

/// Makes a scripted answer faulty; what the script says besides comes on top.
type Fault = (&'static str, fn(&mut Scripted));

const fn named(word: &'static str, fault: fn(&mut Scripted)) -> (&'static str, Fault) {
    (word, (word, fault))
}

pub(super) const FAULTS: &[(&str, Fault)] = &[
    // No byte of an answer.
    named("reset", |script| silent(script, End::Close(Close::Rst))),
    named("close", |script| silent(script, End::Close(Close::Fin))),
    named("hang", |script| silent(script, End::Hang)),
    // Half a body.
    named("cut", |script| half(script, End::Close(Close::Fin))),
    named("cut_reset", |script| half(script, End::Close(Close::Rst))),
    named("stall", |script| half(script, End::Hang)),
    // Complete messages that are no answer.
    named("truncate", |script| {
        script.truncate = true;
        script.cut = Some(Cut::Half);
    }),
    named("empty", |script| whole(script, "", "application/json")),
    named("blank", |script| whole(script, "\n\n  \n", "application/json")),
    named("malformed", |script| whole(script, "{\"id\": \"chatcmpl-1\", \"choices\": [", "application/json")),
    named("html_200", |script| whole(script, HTML, "text/html; charset=utf-8")),
    named("html_502", |script| {
        whole(script, HTML, "text/html; charset=utf-8");
        script.status = Some(StatusCode::BAD_GATEWAY);
    }),
    named("garbage", |script| script.content = Content::Raw("\u{0}\u{1}no http at all\r\n\r\n".into())),
    // Streams that end wrongly; without a stream, an error in a 200 and the whole answer.
    named("stream_error", |script| script.ending = Ending::Error),
    named("no_done", |script| script.ending = Ending::Early),
    named("error_200", |script| {
        script.content = Content::Error(super::shapes::Kind::of_status(StatusCode::INTERNAL_SERVER_ERROR));
        script.status = Some(StatusCode::OK);
    }),
];

const HTML: &str = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head>\
    <body><h1>Bad Gateway</h1></body></html>";

fn silent(script: &mut Scripted, end: End) {
    script.content = Content::Silence;
    script.end = end;
}

fn half(script: &mut Scripted, end: End) {
    script.cut = Some(Cut::Half);
    script.end = end;
}

fn whole(script: &mut Scripted, body: &'static str, content_type: &'static str) {
    script.content = Content::Whole(body.into(), content_type);
}

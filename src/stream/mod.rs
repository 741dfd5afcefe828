//! What a stream says: bytes in; items, facts and the way it ended out. No I/O.
//!
//! An HTTP 200 that streams may still fail at any event, and official clients take many of these failures for
//! an end. Here a stream is complete only if it says so.

mod chunk;
mod estimate;
mod habits;
mod include_usage;
mod observer;
mod reader;
mod written;

pub use estimate::tokens;
pub use habits::Habits;
pub use include_usage::{names_stream_options, with_usage};
pub use observer::{Observer, Seen};
pub use reader::{Form, Item, Reader};
pub use written::written;

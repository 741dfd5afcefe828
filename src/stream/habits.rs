//! What streams have shown of the servers they came from.

use std::collections::HashMap;
use std::sync::Arc;

use crate::lock::Mutex;

/// Streams without an end, from a server that never sent one, after which none is expected of it.
const WITHOUT_END: u32 = 3;
/// Origins remembered. Beyond it all are forgotten: they are learned again in a few calls.
const ORIGINS: usize = 1024;

#[derive(Debug, Default, Clone, Copy)]
struct Habit {
    /// Answers 400 to `stream_options`.
    refuses_usage: bool,
    ends: bool,
    without_end: u32,
}

/// By origin. Shared by all calls.
#[derive(Debug, Default)]
pub struct Habits {
    origins: Mutex<HashMap<Arc<str>, Habit>>,
}

impl Habits {
    /// Whether `stream_options` must not be sent there.
    pub fn refuses_usage(&self, origin: &str) -> bool {
        self.of(origin).refuses_usage
    }

    pub fn refused_usage(&self, origin: &Arc<str>) {
        self.change(origin, |habit| habit.refuses_usage = true);
    }

    /// Whether its streams just stop, as those of some small servers do. One that has ever sent an end is
    /// expected to.
    pub fn never_ends(&self, origin: &str) -> bool {
        let habit = self.of(origin);
        !habit.ends && habit.without_end >= WITHOUT_END
    }

    /// A stream came to a clean close, with an end or without one.
    pub fn closed(&self, origin: &Arc<str>, with_end: bool) {
        let known = self.of(origin);
        if known.ends {
            return;
        }
        self.change(origin, |habit| {
            habit.ends |= with_end;
            habit.without_end = habit.without_end.saturating_add(u32::from(!with_end));
        });
    }

    fn of(&self, origin: &str) -> Habit {
        self.origins.lock().get(origin).copied().unwrap_or_default()
    }

    fn change(&self, origin: &Arc<str>, change: impl FnOnce(&mut Habit)) {
        let mut origins = self.origins.lock();
        if origins.len() >= ORIGINS && !origins.contains_key(origin) {
            origins.clear();
        }
        change(origins.entry(Arc::clone(origin)).or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_never_ends_its_streams_is_believed_after_three() {
        let (habits, origin) = (Habits::default(), Arc::from("http://a.test"));
        for _ in 0..3 {
            assert!(!habits.never_ends(&origin));
            habits.closed(&origin, false);
        }
        assert!(habits.never_ends(&origin));
        assert!(!habits.never_ends("http://b.test"));
        habits.closed(&origin, true);
        assert!(!habits.never_ends(&origin), "it can, so a missing end means something");
    }

    #[test]
    fn a_server_that_ends_its_streams_must_always() {
        let (habits, origin) = (Habits::default(), Arc::from("http://a.test"));
        habits.closed(&origin, true);
        for _ in 0..10 {
            habits.closed(&origin, false);
        }
        assert!(!habits.never_ends(&origin));
    }

    #[test]
    fn invented_origins_do_not_fill_memory() {
        let habits = Habits::default();
        for number in 0..3 * ORIGINS {
            habits.refused_usage(&Arc::from(format!("http://{number}.test")));
        }
        assert!(habits.origins.lock().len() <= ORIGINS);
        assert!(habits.refuses_usage(&format!("http://{}.test", 3 * ORIGINS - 1)));
    }
}

//! Spend caps: windows, tags, prices unknown, and threads that all want the last cent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::clock::Instant;
use tidegate::config::{OnUnpriced, SpendCap, SpendWindow};
use tidegate::money::Pico;
use tidegate::spend::{Moment, Reservation, SpendLedger, Standing};

/// Noon of a day in UTC.
const NOON: u64 = 20_000 * 86_400 + 43_200;

fn after(seconds: u64) -> Moment {
    Moment {
        now: Instant::ZERO + Duration::from_secs(3600 + seconds),
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(NOON + seconds),
    }
}

fn ledger(caps: impl IntoIterator<Item = SpendCap>) -> Arc<SpendLedger> {
    SpendLedger::new(caps.into_iter().collect(), after(0).now)
}

fn cap(limit: u128) -> SpendCap {
    SpendCap::new(Pico::new(limit))
}

#[allow(clippy::unnecessary_wraps, reason = "as the ledger takes it")]
fn picos(amount: u128) -> Option<Pico> {
    Some(Pico::new(amount))
}

/// What is spent, and what is reserved.
fn sums(standing: &Standing) -> (u128, u128) {
    (standing.spent.get(), standing.reserved.get())
}

fn tagged(limit: u128, tag: &str) -> SpendCap {
    SpendCap { tag: Some(tag.to_owned()), ..cap(limit) }
}

fn only(ledger: &SpendLedger, at: Moment) -> Standing {
    let [standing] = <[Standing; 1]>::try_from(ledger.snapshot(at)).unwrap();
    standing
}

fn sent(mut reservation: Reservation) -> Reservation {
    reservation.mark_sent();
    reservation
}

#[test]
fn the_cap_itself_can_be_spent_and_not_more() {
    let ledger = ledger([cap(100)]);
    let first = ledger.reserve(after(0), &[], picos(60)).unwrap();
    let refused = ledger.reserve(after(0), &[], picos(41)).unwrap_err();
    assert_eq!((refused.spent, refused.reserved, refused.asked), (Pico::ZERO, Pico::new(60), picos(41)));
    assert_eq!(refused.resets_in, None);
    let second = ledger.reserve(after(0), &[], picos(40)).unwrap();
    sent(first).settle(picos(25));
    let standing = only(&ledger, after(0));
    assert_eq!(sums(&standing), (25, 40));
    let third = ledger.reserve(after(0), &[], picos(35)).unwrap();
    sent(second).settle(None);
    drop(third);
    let standing = only(&ledger, after(0));
    assert_eq!(sums(&standing), (65, 0), "a cost that nobody knows is the reserved one");
}

#[test]
fn a_drop_frees_what_was_not_sent_and_books_what_was() {
    let ledger = ledger([cap(100)]);
    drop(ledger.reserve(after(0), &[], picos(100)).unwrap());
    assert_eq!(only(&ledger, after(0)).spent.get(), 0);
    drop(sent(ledger.reserve(after(0), &[], picos(70)).unwrap()));
    let standing = only(&ledger, after(0));
    assert_eq!(sums(&standing), (70, 0));
}

#[test]
fn a_cost_above_the_reservation_is_booked_in_full() {
    let ledger = ledger([cap(100)]);
    sent(ledger.reserve(after(0), &[], picos(10)).unwrap()).settle(picos(130));
    assert_eq!(only(&ledger, after(0)).spent.get(), 130);
    assert!(ledger.reserve(after(0), &[], picos(0)).is_err(), "over the cap even nothing is too much");
}

#[test]
fn tags_choose_the_caps_and_all_must_agree() {
    let ledger = ledger([cap(100), tagged(30, "route=chat"), tagged(50, "tenant=a=b")]);
    let spent =
        || ledger.snapshot(after(0)).iter().map(|standing| standing.reserved.get()).collect::<Vec<_>>();
    let chat = ledger.reserve(after(0), &[("tenant", "x"), ("route", "chat")], picos(30)).unwrap();
    assert_eq!(spent(), [30, 30, 0]);
    let both = [("route", "chat"), ("tenant", "a=b")];
    let refused = ledger.reserve(after(0), &both, picos(1)).unwrap_err();
    assert_eq!(*refused.cap, tagged(30, "route=chat"));
    assert_eq!(spent(), [30, 30, 0], "what one cap refuses no other holds");
    let other =
        ledger.reserve(after(0), &[("route", "chats"), ("rout", "e=chat"), ("tenant", "a=b")], picos(50));
    assert_eq!(spent(), [80, 30, 50]);
    drop((chat, other));
    assert_eq!(spent(), [0, 0, 0]);
}

/// B97: a model without a price is refused or let through as configured, never free by accident.
#[test]
fn calls_without_a_price_follow_the_policy() {
    let strict = ledger([cap(100)]);
    let refused = strict.reserve(after(0), &[], None).unwrap_err();
    assert_eq!(refused.asked, None);
    assert!(strict.reserve(after(0), &[], picos(0)).is_ok(), "a price of zero is a price");
    let lenient = ledger([SpendCap { on_unpriced: OnUnpriced::Allow, ..cap(100) }]);
    sent(lenient.reserve(after(0), &[], None).unwrap()).settle(None);
    let standing = only(&lenient, after(0));
    assert_eq!((standing.spent, standing.unpriced), (Pico::ZERO, 1));
    let mixed = ledger([tagged(100, "route=paid")]);
    assert!(mixed.reserve(after(0), &[], None).is_ok(), "no cap applies");
    assert!(mixed.reserve(after(0), &[("route", "paid")], None).is_err());
}

#[test]
fn a_window_of_seconds_starts_with_the_gate() {
    let ledger = ledger([SpendCap { window: SpendWindow::Every(Duration::from_secs(60)), ..cap(100) }]);
    sent(ledger.reserve(after(0), &[], picos(100)).unwrap()).settle(None);
    let refused = ledger.reserve(after(59), &[], picos(1)).unwrap_err();
    assert_eq!(refused.resets_in, Some(Duration::from_secs(1)));
    let reservation = ledger.reserve(after(60), &[], picos(100)).unwrap();
    assert!(ledger.reserve(after(119), &[], picos(1)).is_err());
    let next = ledger.reserve(after(185), &[], picos(100)).unwrap();
    sent(reservation).settle(picos(90));
    let standing = only(&ledger, after(185));
    assert_eq!(sums(&standing), (0, 100), "a call counts where it was admitted");
    assert_eq!(standing.resets_in, Some(Duration::from_secs(55)));
    drop(next);
}

#[test]
fn a_day_ends_at_midnight_utc() {
    let ledger = ledger([SpendCap { window: SpendWindow::Day, ..cap(100) }]);
    sent(ledger.reserve(after(0), &[], picos(100)).unwrap()).settle(None);
    let refused = ledger.reserve(after(43_199), &[], picos(1)).unwrap_err();
    assert_eq!(refused.resets_in, Some(Duration::from_secs(1)));
    sent(ledger.reserve(after(43_200), &[], picos(100)).unwrap()).settle(None);
    let back = Moment { wall: after(0).wall, ..after(43_200) };
    let refused = ledger.reserve(back, &[], picos(1)).unwrap_err();
    assert_eq!(refused.resets_in, Some(Duration::from_secs(43_200 + 86_400)), "no day comes twice");
}

#[test]
fn wrong_caps_are_named() {
    let field = |cap: SpendCap| cap.validate().unwrap_err().field;
    assert_eq!(field(cap(0)), "spend.limit");
    assert_eq!(field(tagged(1, "route")), "spend.tag");
    assert_eq!(field(tagged(1, "=chat")), "spend.tag");
    let window = SpendWindow::Every(Duration::from_millis(999));
    assert_eq!(field(SpendCap { window, ..cap(1) }), "spend.window");
    assert_eq!(tagged(1, "route=chat").validate(), Ok(()));
}

#[test]
fn sixty_four_threads_never_exceed_it() {
    const LIMIT: u64 = 100_000;
    let ledger = ledger([cap(LIMIT.into()), tagged(u128::from(LIMIT) / 4, "route=chat")]);
    let (total, chat) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..64 {
            let (ledger, total, chat) = (&ledger, &total, &chat);
            scope.spawn(move || {
                let rng = &mut StdRng::seed_from_u64(seed);
                for _ in 0..2000 {
                    let is_chat = rng.random_bool(0.5);
                    let tags: &[_] = if is_chat { &[("route", "chat")] } else { &[] };
                    let most = rng.random_range(1..200);
                    let Ok(reservation) = ledger.reserve(after(0), tags, picos(most.into())) else {
                        continue;
                    };
                    let real = rng.random_range(0..=most);
                    match rng.random_range(0..4) {
                        0 => drop(reservation),
                        1 => {
                            total.fetch_add(most, Ordering::Relaxed);
                            chat.fetch_add(if is_chat { most } else { 0 }, Ordering::Relaxed);
                            drop(sent(reservation));
                        }
                        _ => {
                            total.fetch_add(real, Ordering::Relaxed);
                            chat.fetch_add(if is_chat { real } else { 0 }, Ordering::Relaxed);
                            sent(reservation).settle(picos(real.into()));
                        }
                    }
                    for standing in ledger.snapshot(after(0)) {
                        assert!(standing.spent.saturating_add(standing.reserved) <= standing.cap.limit);
                    }
                }
            });
        }
    });
    let standings = ledger.snapshot(after(0));
    let spent: Vec<_> = standings.iter().map(sums).collect();
    assert_eq!(spent, [(total.into_inner().into(), 0), (chat.into_inner().into(), 0)], "to the pico-dollar");
    assert!(spent[0].0 > u128::from(LIMIT) - 200, "and the cap was reached: {spent:?}");
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Reserve { chat: bool, amount: u128 },
    Settle { which: prop::sample::Index, share: u128 },
    Drop { which: prop::sample::Index, sent: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let step = prop_oneof![
        1 => (0..40_u64).prop_map(Step::Wait),
        4 => (any::<bool>(), 0..60_u128).prop_map(|(chat, amount)| Step::Reserve { chat, amount }),
        2 => (which(), 0..=100_u128).prop_map(|(which, share)| Step::Settle { which, share }),
        1 => (which(), any::<bool>()).prop_map(|(which, sent)| Step::Drop { which, sent }),
    ];
    prop::collection::vec(step, 1..120)
}

/// One call of the model: when it was admitted, whether the tag applied, what it holds and what it has spent.
struct Call {
    admitted: u64,
    chat: bool,
    reserved: u128,
    spent: u128,
}

proptest! {
    /// The model keeps every call and adds up those that count for a cap.
    #[test]
    fn does_what_a_list_of_calls_does(steps in steps()) {
        let minute = SpendCap { window: SpendWindow::Every(Duration::from_secs(60)), ..cap(100) };
        let ledger = ledger([minute, tagged(150, "route=chat")]);
        let mut calls: Vec<Call> = Vec::new();
        let mut open: Vec<(usize, Reservation)> = Vec::new();
        let mut now = 0;
        for step in steps {
            let expected = |calls: &[Call], now: u64| {
                let add = |sums: (u128, u128), call: &Call| (sums.0 + call.spent, sums.1 + call.reserved);
                let minute = calls.iter().filter(|call| call.admitted / 60 == now / 60).fold((0, 0), add);
                [minute, calls.iter().filter(|call| call.chat).fold((0, 0), add)]
            };
            match step {
                Step::Wait(wait) => now += wait,
                Step::Reserve { chat, amount } => {
                    let [minute, tag] = expected(&calls, now);
                    let fits = minute.0 + minute.1 + amount <= 100 && (!chat || tag.0 + tag.1 + amount <= 150);
                    let tags: &[_] = if chat { &[("route", "chat")] } else { &[] };
                    let answer = ledger.reserve(after(now), tags, picos(amount));
                    prop_assert_eq!(answer.is_ok(), fits);
                    if let Ok(reservation) = answer {
                        open.push((calls.len(), reservation));
                        calls.push(Call { admitted: now, chat, reserved: amount, spent: 0 });
                    }
                }
                Step::Settle { which, share } if !open.is_empty() => {
                    let (call, reservation) = open.swap_remove(which.index(open.len()));
                    let call = &mut calls[call];
                    call.spent = call.reserved * share / 100;
                    call.reserved = 0;
                    reservation.settle(picos(call.spent));
                }
                Step::Drop { which, sent: was_sent } if !open.is_empty() => {
                    let (call, reservation) = open.swap_remove(which.index(open.len()));
                    let call = &mut calls[call];
                    call.spent = if was_sent { call.reserved } else { 0 };
                    call.reserved = 0;
                    drop(if was_sent { sent(reservation) } else { reservation });
                }
                Step::Settle { .. } | Step::Drop { .. } => {}
            }
            let expected = expected(&calls, now);
            let standings = ledger.snapshot(after(now));
            let found = [0, 1].map(|cap: usize| sums(&standings[cap]));
            prop_assert_eq!(found, expected);
        }
    }
}

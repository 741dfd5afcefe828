//! Reading JSON that strangers wrote, in one pass and without a tree.
//!
//! A field may hold anything: a value of the wrong kind reads as the default, an unknown field is skipped,
//! and of two fields with one name the last counts. Only broken syntax is an error.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What becomes of each kind of JSON value. All default to `Self::default()`.
pub(crate) trait Lenient<'de>: Default {
    fn null() -> Self {
        Self::default()
    }

    fn boolean(_: bool) -> Self {
        Self::default()
    }

    fn unsigned(_: u64) -> Self {
        Self::default()
    }

    /// Fractions, negative numbers and numbers beyond `u64`.
    fn float(_: f64) -> Self {
        Self::default()
    }

    fn text(_: &str) -> Self {
        Self::default()
    }

    /// Text without escapes, which need not be copied.
    fn borrowed_text(text: &'de str) -> Self {
        Self::text(text)
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Read(PhantomData))
    }
}

/// Reads one whole document.
pub(crate) fn read<'de, T: Lenient<'de>>(json: &'de [u8]) -> serde_json::Result<T> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = T::read(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads a value where serde wants a seed.
pub(crate) struct Read<T>(PhantomData<T>);

pub(crate) fn seed<T>() -> Read<T> {
    Read(PhantomData)
}

impl<'de, T: Lenient<'de>> DeserializeSeed<'de> for Read<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::read(deserializer)
    }
}

impl<'de, T: Lenient<'de>> Visitor<'de> for Read<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::null())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        Ok(T::boolean(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        Ok(T::unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        Ok(T::float(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        Ok(T::float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        Ok(T::text(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<T, E> {
        Ok(T::borrowed_text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::object(object)
    }
}

/// A field's name, looked up while it is read so that it is never copied.
pub(crate) struct Name<F>(pub(crate) F);

impl<'de, K, F: FnOnce(&str) -> K> DeserializeSeed<'de> for Name<F> {
    type Value = K;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<K, F: FnOnce(&str) -> K> Visitor<'_> for Name<F> {
    type Value = K;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<K, E> {
        Ok((self.0)(name))
    }
}

/// Declares a struct that reads the named fields of an object.
macro_rules! lenient_object {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident $(<$life:lifetime>)? {
        $($field_visibility:vis $field:ident: $type:ty = $key:literal,)*
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        $visibility struct $name $(<$life>)? {
            $($field_visibility $field: $type,)*
        }

        impl<'de $(: $life, $life)?> $crate::json::Lenient<'de> for $name $(<$life>)?
        where
            $($type: $crate::json::Lenient<'de>,)*
        {
            fn object<A: serde::de::MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
                #[allow(non_camel_case_types, reason = "the variants are the fields")]
                enum Key { $($field,)* Other }
                let mut read = Self::default();
                while let Some(key) = object.next_key_seed($crate::json::Name(|name: &str| match name {
                    $($key => Key::$field,)*
                    _ => Key::Other,
                }))? {
                    match key {
                        $(Key::$field => read.$field = object.next_value_seed($crate::json::seed())?,)*
                        Key::Other => {
                            object.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(read)
            }
        }
    };
}
pub(crate) use lenient_object;

/// A count: also from `"7"` and `7.0`; `None` for anything negative or not a number.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) Option<u64>);

impl Count {
    pub(crate) fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

impl Lenient<'_> for Count {
    fn unsigned(value: u64) -> Self {
        Self(Some(value))
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be non-negative; `as` saturates at the top"
    )]
    fn float(value: f64) -> Self {
        Self((value.is_finite() && value >= 0.0).then(|| value.round() as u64))
    }

    fn text(text: &str) -> Self {
        let text = text.trim();
        text.parse().map_or_else(|_| text.parse().map_or(Self(None), Self::float), Self::unsigned)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) Option<bool>);

impl Lenient<'_> for Flag {
    fn boolean(value: bool) -> Self {
        Self(Some(value))
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Option<Cow<'a, str>>);

impl Text<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.0.as_deref() == Some(text)
    }

    pub(crate) fn into_string(self) -> Option<String> {
        self.0.map(Cow::into_owned)
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Text<'a> {
    fn text(text: &str) -> Self {
        Self(Some(Cow::Owned(text.to_owned())))
    }

    fn borrowed_text(text: &'de str) -> Self {
        Self(Some(Cow::Borrowed(text)))
    }
}

/// The value's own text, for numbers that must not pass through a float.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Raw<'a>(pub(crate) Option<&'a str>);

impl<'de: 'a, 'a> Lenient<'de> for Raw<'a> {
    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de RawValue>::deserialize(deserializer).map(|raw| Self(Some(raw.get())))
    }
}

/// Whether there is a value that says something: not null, false, 0, or empty.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Present(pub(crate) bool);

impl<'de> Lenient<'de> for Present {
    fn boolean(value: bool) -> Self {
        Self(value)
    }

    fn unsigned(value: u64) -> Self {
        Self(value != 0)
    }

    fn text(text: &str) -> Self {
        Self(!text.is_empty())
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut any = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Self(any))
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut any = false;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Self(any))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    lenient_object! {
        struct Sample<'a> {
            count: Count = "count",
            text: Text<'a> = "text",
            raw: Raw<'a> = "raw",
            error: Present = "error",
        }
    }

    fn sample(json: &str) -> Sample<'_> {
        read(json.as_bytes()).unwrap()
    }

    #[test]
    fn any_kind_in_any_place() {
        for value in ["null", "true", "-1", "1.5", "\"x\"", "[1,[2]]", "{\"count\":{}}"] {
            let json = format!("{{\"count\":{value},\"text\":{value},\"raw\":{value},\"error\":{value}}}");
            assert_eq!(sample(&json).raw.0, Some(value));
            read::<Sample<'_>>(value.as_bytes()).unwrap();
        }
    }

    #[test]
    fn counts() {
        for (json, want) in [("7", Some(7)), ("7.0", Some(7)), ("\" 7 \"", Some(7)), ("\"7.0\"", Some(7))] {
            assert_eq!(sample(&format!("{{\"count\":{json}}}")).count.0, want, "{json}");
        }
        for json in ["-1", "null", "\"many\"", "\"nan\"", "\"-3\"", "[]"] {
            assert_eq!(sample(&format!("{{\"count\":{json}}}")).count.0, None, "{json}");
        }
    }

    #[test]
    fn the_last_of_two_counts_and_escapes_are_read() {
        assert_eq!(sample(r#"{"count":1,"count":2}"#).count.0, Some(2));
        assert!(sample(r#"{"te\u0078t":"a\nb"}"#).text.is("a\nb"));
        assert!(matches!(sample(r#"{"text":"plain"}"#).text.0, Some(Cow::Borrowed(_))));
    }

    #[test]
    fn emptiness_says_nothing() {
        for json in ["null", "false", "0", "\"\"", "[]", "{}"] {
            assert!(!sample(&format!("{{\"error\":{json}}}")).error.0, "{json}");
        }
        for json in ["true", "1", "\"x\"", "[0]", "{\"code\":null}"] {
            assert!(sample(&format!("{{\"error\":{json}}}")).error.0, "{json}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read::<Sample<'_>>(&bytes);
        }
    }
}

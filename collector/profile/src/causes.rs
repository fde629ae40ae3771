//! Lists of causes, and a number for each of them.

use std::fmt;
use std::marker::PhantomData;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// One of a list of causes that are counted apart. [`causes!`] makes such lists.
pub trait Cause: Copy + fmt::Debug + PartialEq + 'static {
    /// All causes, in file-format order: new ones go last.
    const ALL: &'static [Self];
    /// Whether JSON has those whose number is 0.
    const HAS_ZEROS: bool;

    /// For machines.
    fn key(self) -> &'static str;
    /// Position in [`Cause::ALL`].
    fn index(self) -> usize;
}

/// Defines an enum of causes with a key for machines and a text for people.
macro_rules! causes {
    (
        $(#[$of_all:meta])* $name:ident, zeros in JSON: $zeros:literal;
        $($(#[$doc:meta])* $cause:ident => $key:literal, $text:literal,)*
    ) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $cause,)*
        }

        impl $name {
            /// All of them. New ones are added at the end: the order is part of the file format.
            pub const ALL: &'static [Self] = &[$(Self::$cause,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// For machines.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$cause => $key,)*
                }
            }

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$cause => $text,)*
                }
            }
        }

        impl $crate::causes::Cause for $name {
            const ALL: &'static [Self] = Self::ALL;
            const HAS_ZEROS: bool = $zeros;

            fn key(self) -> &'static str {
                self.key()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use causes;

/// A number for each cause. `N` is how many causes there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ByCause<C, const N: usize> {
    numbers: [u64; N],
    causes: PhantomData<C>,
}

impl<C, const N: usize> Default for ByCause<C, N> {
    fn default() -> Self {
        Self { numbers: [0; N], causes: PhantomData }
    }
}

impl<C: Cause, const N: usize> ByCause<C, N> {
    /// Splits `total` by cause: each of `parts` takes at most its number, in this order, and `rest` what is left.
    #[must_use]
    pub fn split_with(total: u64, parts: &[(C, u64)], rest: C) -> Self {
        let (mut split, mut left) = (Self::default(), total);
        for &(cause, most) in parts.iter().chain(&[(rest, u64::MAX)]) {
            let part = most.min(left);
            left -= part;
            split.add(cause, part);
        }
        split
    }

    /// The number of one cause.
    #[must_use]
    pub fn get(&self, cause: C) -> u64 {
        self.numbers.get(cause.index()).copied().unwrap_or(0)
    }

    /// Adds to the number of one cause.
    pub fn add(&mut self, cause: C, more: u64) {
        self.set(cause, self.get(cause).saturating_add(more));
    }

    /// Sets the number of one cause.
    pub fn set(&mut self, cause: C, number: u64) {
        if let Some(old) = self.numbers.get_mut(cause.index()) {
            *old = number;
        }
    }

    /// The sum over all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.numbers.iter().copied().fold(0, u64::saturating_add)
    }

    /// The causes whose number is not 0.
    pub fn iter(&self) -> impl Iterator<Item = (C, u64)> + '_ {
        self.all().filter(|&(_, number)| number > 0)
    }

    /// Every cause.
    pub fn all(&self) -> impl Iterator<Item = (C, u64)> + '_ {
        C::ALL.iter().copied().zip(self.numbers)
    }

    /// In the order of [`Cause::ALL`].
    #[must_use]
    pub const fn numbers(&self) -> &[u64; N] {
        &self.numbers
    }

    pub(crate) const fn numbers_mut(&mut self) -> &mut [u64; N] {
        &mut self.numbers
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.numbers.iter_mut().zip(other.numbers).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut later = *self;
        later
            .numbers
            .iter_mut()
            .zip(earlier.numbers)
            .for_each(|(number, before)| *number = number.saturating_sub(before));
        later
    }
}

impl<C: Cause, const N: usize> fmt::Debug for ByCause<C, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<C: Cause, const N: usize> Serialize for ByCause<C, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (cause, number) in self.all().filter(|&(_, number)| C::HAS_ZEROS || number > 0) {
            map.serialize_entry(cause.key(), &number)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    causes! {
        Why, zeros in JSON: false;
        First => "first", "the first",
        Second => "second", "the second",
        Rest => "rest", "the rest",
    }
    type Numbers = ByCause<Why, { Why::COUNT }>;

    #[test]
    fn parts_add_up_to_the_whole() {
        let parts = [(Why::Second, 3), (Why::First, 4)];
        let split = |total| Numbers::split_with(total, &parts, Why::Rest);
        let causes = |total| split(total).iter().collect::<Vec<_>>();
        assert_eq!(causes(0), []);
        assert_eq!(causes(5), [(Why::First, 2), (Why::Second, 3)]);
        assert_eq!(causes(10), [(Why::First, 4), (Why::Second, 3), (Why::Rest, 3)]);
        assert_eq!((split(u64::MAX).total(), Why::Rest.text()), (u64::MAX, "the rest"));
        assert_eq!(serde_json::to_string(&split(5)).ok().as_deref(), Some(r#"{"first":2,"second":3}"#));
    }

    #[test]
    fn later_numbers_are_earlier_ones_and_what_came_in_between() {
        let mut earlier = Numbers::default();
        earlier.add(Why::First, 2);
        let mut later = earlier;
        later.add(Why::First, 3);
        later.set(Why::Rest, 7);
        let mut sum = later.since(&earlier);
        assert_eq!((sum.get(Why::First), sum.get(Why::Rest)), (3, 7));
        sum.merge(&earlier);
        assert_eq!(sum, later);
    }
}

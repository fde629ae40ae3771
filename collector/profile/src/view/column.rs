//! The columns that rows of views can be ordered by.

use std::str::FromStr;

use serde::Serialize;

/// A column. Numbers are ordered largest first, words as in a dictionary; what is equal keeps the order of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ViewColumn {
    /// Self weight; of a row that has but one weight, that.
    #[serde(rename = "self")]
    Own,
    /// Inherited weight.
    Inherited,
    /// Inherited less self weight.
    Child,
    /// Samples of the self weight; of a row that has but one weight, of that.
    Samples,
    /// Name.
    Name,
    /// Image.
    Image,
    /// Process or thread id.
    Id,
}

impl ViewColumn {
    /// All of them.
    pub const ALL: [ViewColumn; 7] = [
        ViewColumn::Own,
        ViewColumn::Inherited,
        ViewColumn::Child,
        ViewColumn::Samples,
        ViewColumn::Name,
        ViewColumn::Image,
        ViewColumn::Id,
    ];

    /// Its name in tables and on the command line: the word that other profilers use.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            ViewColumn::Inherited => "total",
            other => other.name(),
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ViewColumn::Own => "self",
            ViewColumn::Inherited => "inherited",
            ViewColumn::Child => "child",
            ViewColumn::Samples => "samples",
            ViewColumn::Name => "name",
            ViewColumn::Image => "image",
            ViewColumn::Id => "id",
        }
    }
}

impl FromStr for ViewColumn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || ViewColumn::ALL.map(ViewColumn::heading).join(", ");
        ViewColumn::ALL
            .into_iter()
            .find(|it| it.name() == text || it.heading() == text)
            .ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

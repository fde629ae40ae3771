//! The columns that rows of views can be ordered by.

use std::str::FromStr;

use serde::Serialize;

/// A column. Numbers are ordered largest first, words as in a dictionary; what is equal keeps the order of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
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

impl Column {
    /// All of them.
    pub const ALL: [Column; 7] =
        [Column::Own, Column::Inherited, Column::Child, Column::Samples, Column::Name, Column::Image, Column::Id];

    /// Its name in tables and on the command line: the word that other profilers use.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Column::Inherited => "total",
            other => other.name(),
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Column::Own => "self",
            Column::Inherited => "inherited",
            Column::Child => "child",
            Column::Samples => "samples",
            Column::Name => "name",
            Column::Image => "image",
            Column::Id => "id",
        }
    }
}

impl FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Column::ALL.map(Column::heading).join(", ");
        Column::ALL
            .into_iter()
            .find(|it| it.name() == text || it.heading() == text)
            .ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

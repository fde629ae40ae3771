//! Which of the machine's processes a session is about, and what they belong to.

pub mod container_names;
pub mod membership;
pub mod selection;

//! The table of the kernel's functions.

/// Marks the start of something that is not a function.
pub const NO_FUNCTION: u32 = u32::MAX;

#[derive(Debug)]
pub struct KernelTable {
    /// Address, and position of the name in `text` or [`NO_FUNCTION`].
    pub symbols: Vec<(u64, u32)>,
    /// Names as `name\0`, followed by modules as `module\0`, if there are any.
    pub text: Vec<u8>,
    pub modules: bool,
    /// End of the core kernel's text (`_etext`); 0 if unknown.
    pub proper_end: u64,
}

impl KernelTable {
    /// Whether a function at this address belongs to the core kernel.
    pub fn is_proper(&self, address: u64) -> bool {
        let first = self.symbols.first().map_or(u64::MAX, |&(start, _)| start);
        (first..self.proper_end).contains(&address)
    }

    pub fn name_at(&self, at: u32) -> Option<(&str, Option<&str>)> {
        if at == NO_FUNCTION {
            return None;
        }
        let mut parts = self.text.get(at as usize..)?.split(|&byte| byte == 0);
        let mut next = || std::str::from_utf8(parts.next().unwrap_or_default()).ok();
        let name = next()?;
        let module = if self.modules { next()? } else { "" };
        Some((name, (!module.is_empty()).then_some(module)))
    }
}

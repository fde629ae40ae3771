//! The core kernel's functions in a form that is read quickly.
//!
//! The kernel takes 40 ms and more to print them, and they stay in place until the next boot, unlike modules.
//!
//! Format, little endian: `ccsdksym`, a version, the boot id, the end of the core kernel (8 bytes), the number of
//! functions
//! (4), their addresses (8 each), positions of their names (4 each), the names, each with a NUL, and a CRC-32 (4).

use super::KernelSymbols;
use super::table::{KernelTable, NO_FUNCTION};

const MAGIC: &[u8] = b"ccsdksym\x01";
/// Length of `/proc/sys/kernel/random/boot_id` without the newline.
const BOOT_ID: usize = 36;

impl KernelSymbols {
    /// Whether a function at this address belongs to the core kernel, and is therefore known until the next boot.
    #[must_use]
    pub fn is_proper(&self, address: u64) -> bool {
        self.table.is_proper(address)
    }

    /// Serialises the core kernel's functions for [`KernelSymbols::from_stored`] in this boot. `None` if its end is
    /// unknown.
    #[must_use]
    pub fn to_stored(&self, boot_id: &str) -> Option<Vec<u8>> {
        if boot_id.len() != BOOT_ID || self.table.proper_end == 0 {
            return None;
        }
        let proper = self.table.symbols.partition_point(|&(start, _)| start < self.table.proper_end);
        let (mut places, mut names) = (Vec::new(), Vec::new());
        let mut addresses = Vec::new();
        for &(start, at) in self.table.symbols.get(..proper)? {
            let place = match self.table.name_at(at) {
                // A module's function among them: the layout is not the expected one.
                Some((_, Some(_))) => return None,
                Some((name, None)) => {
                    let place = u32::try_from(names.len()).ok()?;
                    names.extend_from_slice(name.as_bytes());
                    names.push(0);
                    place
                }
                None => NO_FUNCTION,
            };
            addresses.extend_from_slice(&start.to_le_bytes());
            places.extend_from_slice(&place.to_le_bytes());
        }
        let mut stored = [MAGIC, boot_id.as_bytes(), &self.table.proper_end.to_le_bytes()].concat();
        stored.extend_from_slice(&u32::try_from(proper).ok()?.to_le_bytes());
        stored.extend([addresses, places, names].concat());
        stored.extend_from_slice(&crc32fast::hash(&stored).to_le_bytes());
        Some(stored)
    }

    /// Reads the result of [`KernelSymbols::to_stored`] of the same boot; `None` for anything else.
    #[must_use]
    pub fn from_stored(mut stored: Vec<u8>, boot_id: &str) -> Option<KernelSymbols> {
        let (body, sum) = stored.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        let end = body.len();
        let body = body.strip_prefix(MAGIC)?.strip_prefix(boot_id.as_bytes())?;
        let (proper_end, body) = body.split_first_chunk::<8>()?;
        let (count, body) = body.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (addresses, body) = body.split_at_checked(count.checked_mul(8)?)?;
        let (places, names) = body.split_at_checked(count.checked_mul(4)?)?;
        let addresses = addresses.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let places = places.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let symbols: Vec<(u64, u32)> = addresses.zip(places).collect();
        let (proper_end, names) = (u64::from_le_bytes(*proper_end), end - names.len());
        stored.truncate(end);
        stored.drain(..names);
        stored.shrink_to_fit();
        // Names without modules.
        let known = KernelTable { symbols, text: stored, proper_end, modules: false };
        (!known.symbols.is_empty() && known.symbols.is_sorted()).then(|| KernelSymbols::of(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "90c331d1-a80e-477b-b671-85c277874f19";
    const LIST: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t helper
ffffffff81000180 T gap_before
ffffffff81000190 d data
ffffffff81000200 T last
ffffffff81000280 T _etext
ffffffff81000300 t init_text
ffffffffa0001000 t ext4_read\t[ext4]
";

    fn all() -> KernelSymbols {
        KernelSymbols::read(LIST.as_bytes()).unwrap()
    }

    #[test]
    fn it_answers_the_same() {
        let all = all();
        let stored = KernelSymbols::from_stored(all.to_stored(BOOT).unwrap(), BOOT).unwrap();
        for address in (0xffff_ffff_8100_0000u64..0xffff_ffff_8100_0280).step_by(7) {
            assert!(stored.is_proper(address) && all.is_proper(address));
            assert_eq!(stored.lookup(address), all.lookup(address), "{address:#x}");
        }
        for address in [0, 0xffff_ffff_80ff_ffff, 0xffff_ffff_8100_0280, 0xffff_ffff_a000_1010, u64::MAX] {
            assert!(!stored.is_proper(address) && !all.is_proper(address), "{address:#x}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let stored = all().to_stored(BOOT).unwrap();
        assert!(KernelSymbols::from_stored(stored.clone(), &BOOT.replace('9', "8")).is_none());
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x10;
            assert!(KernelSymbols::from_stored(damaged, BOOT).is_none(), "{at}");
            assert!(KernelSymbols::from_stored(stored[..at].to_vec(), BOOT).is_none(), "{at}");
        }
        assert!(all().to_stored("").is_none());
        // The end of the core kernel is unknown.
        let without = LIST.replace("_etext", "something");
        assert!(KernelSymbols::read(without.as_bytes()).unwrap().to_stored(BOOT).is_none());
    }
}

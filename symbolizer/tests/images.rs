//! Headers, segments and unwind sections of real programs, and refused files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, ImageError, KernelSymbols, KernelSymbolsError, Symbols};
use common::{Workshop, have, linkage, open, resolve, run, sections};

#[test]
fn segments_and_build_id_are_what_readelf_says() {
    if !have(&["cc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-O2", "-O2 -no-pie", "-O2 -static", "-O2 -static-pie", "-O2 -Wl,-z,noseparate-code"] {
        let path = workshop.build("plain.c", args, "plain");
        let image = open(&path);
        let listing = run(Command::new("readelf").args(["-lnW"]).arg(&path));
        let loads: Vec<Vec<u64>> = listing
            .lines()
            .filter(|line| line.trim_start().starts_with("LOAD"))
            .map(|line| {
                let fields = line.split_whitespace().skip(1).take(5);
                fields.map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16).unwrap()).collect()
            })
            .collect();
        let ours: Vec<Vec<u64>> =
            image.segments().iter().map(|s| vec![s.file_offset, s.svma, s.svma, s.file_size, s.mem_size]).collect();
        assert_eq!(ours, loads, "{args}");
        assert_eq!(image.base_svma(), loads[0][1], "{args}");
        let id: String = image.build_id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(listing.contains(&id), "{args}: {id}");
        for segment in image.segments() {
            let middle = segment.file_size / 2;
            let svma = image.svma_of_file_offset(segment.file_offset + middle);
            assert_eq!(svma, Some(segment.svma + middle), "{args}: {segment:?}");
        }
        // The start of the code's first page: the file offset of its mapping.
        let code = image.segments().iter().find(|segment| segment.executable).unwrap();
        let page = code.file_offset & !4095;
        let svma = image.svma_of_file_offset(page).unwrap();
        assert!(svma == code.svma & !4095 || image.segments().iter().any(|s| s.svma == svma), "{args}");
        assert_eq!(image.svma_of_file_offset(1 << 50), None);
    }
}

#[test]
fn unwind_sections_are_found_with_and_without_section_headers() {
    if !have(&["cc", "readelf", "objcopy"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-O2", "-O2 -no-pie", "-O2 -static-pie"] {
        let path = workshop.build("plain.c", args, "plain");
        let expected = sections(&path);
        let found = open(&path).unwind_sections();
        let range = |name: &str| expected.get(name).map(|&(start, size)| start..start + size);
        assert_eq!(found.eh_frame.as_ref().map(|s| s.svma.clone()), range(".eh_frame"), "{args}");
        assert_eq!(found.eh_frame_hdr.as_ref().map(|s| s.svma.clone()), range(".eh_frame_hdr"), "{args}");
        assert_eq!(found.text_svma, range(".text"), "{args}");
        assert_eq!(found.got_svma, range(".got"), "{args}");
        assert_eq!(found.debug_frame, None);

        // No section headers, as after `sstrip` and packers.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        let bare = Arc::new(ElfFile::from_bytes(bytes).unwrap());
        assert!(bare.has_unwind_info());
        let without = bare.unwind_sections();
        let (with, without_frame) = (found.eh_frame.as_ref().unwrap(), without.eh_frame.as_ref().unwrap());
        assert_eq!(without_frame.svma.start, with.svma.start, "{args}");
        assert!(without_frame.data.starts_with(&with.data), "{args}");
        assert!(bare.unwind_size() >= without.bytes(), "{args}");
        assert_eq!(without.eh_frame_hdr, found.eh_frame_hdr, "{args}");
        // Functions are still distinguished.
        let (start, ..) = common::nm(&path).into_iter().find(|(_, _, name)| name == "main").unwrap();
        let mut symbols = Symbols::new(bare, DebugFileFinder::none());
        assert_eq!(resolve(&mut symbols, start + 1)[0].start, Some(start), "{args}");
    }
}

#[test]
fn debug_frame_is_used_where_there_is_no_eh_frame() {
    if !have(&["cc", "objcopy", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    for compress in ["none", "zlib"] {
        let args = format!("-g -O2 -gz={compress} -fno-asynchronous-unwind-tables -static -nostdlib");
        let path = workshop.build("bare.c", &args, "bare");
        let found = open(&path).unwind_sections();
        assert!(found.eh_frame.is_none() && found.eh_frame_hdr.is_none());
        let frame = found.debug_frame.as_ref().expect("there is a .debug_frame");
        // The decompressed size.
        assert_eq!(open(&path).unwind_size(), frame.len() as u64, "{compress}");
        assert!((40..1000).contains(&frame.len()), "{compress}: {}", frame.len());
        assert!(open(&path).has_unwind_info());
        // Functions are found through it if nothing else is left.
        let (start, size, _) = common::nm(&path).into_iter().find(|(_, _, name)| name == "work").unwrap();
        let only = ["-R", ".symtab", "-R", ".strtab", "-R", ".debug_info"];
        let path =
            workshop.objcopy(&[&["--strip-all", "--keep-section=.debug_frame"], &only[..]].concat(), &path, "only");
        let mut symbols = Symbols::new(open(&path), DebugFileFinder::none());
        let found = resolve(&mut symbols, start + size - 1);
        assert_eq!(found.first().map(|function| function.start), Some(Some(start)), "{compress}");
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let workshop = Workshop::new();
    assert!(matches!(ElfFile::open(File::open(workshop.dir.path()).unwrap()), Err(ImageError::NotRegular)));
    assert!(matches!(ElfFile::open(File::open("/dev/zero").unwrap()), Err(ImageError::NotRegular)));
    for text in [&b""[..], b"\x7fELF", &[b'x'; 64], &[0; 4096]] {
        assert!(matches!(ElfFile::from_bytes(text.to_vec()), Err(ImageError::NotElf)), "{text:?}");
    }
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for (at, value, reason) in
        [(4, 1, "class"), (5, 2, "byte order"), (18, 183, "machine"), (16, 1, "type"), (16, 4, "type")]
    {
        let mut bytes = own[..4096].to_vec();
        bytes[at] = value;
        match ElfFile::from_bytes(bytes) {
            Err(ImageError::Unsupported(text)) => assert!(text.starts_with(reason), "{text}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    // Program headers beyond the end of the file.
    let mut bytes = own[..4096].to_vec();
    bytes[0x20..0x28].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(ElfFile::from_bytes(bytes), Err(ImageError::Malformed(_))));
}

#[test]
fn a_file_that_shrinks_while_it_is_open_gives_errors_and_no_signal() {
    let workshop = Workshop::new();
    let path = workshop.path("copy");
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let image = open(&path);
    File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let mut symbols = Symbols::new(image.clone(), DebugFileFinder::none());
    // Not the entry function, although the readable header named it.
    assert!(resolve(&mut symbols, image.segments()[1].svma + 4096).is_empty());
    assert!(!image.has_unwind_info());
}

#[test]
fn the_vdso_has_names_and_unwind_information() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        eprintln!("SKIPPED: needs a vdso");
        return;
    };
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let hex = |text| u64::from_str_radix(text, 16).unwrap();
    let mut bytes = vec![0; (hex(end) - hex(start)) as usize];
    let mut memory = File::open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(hex(start))).unwrap();
    memory.read_exact(&mut bytes).unwrap();
    let image = Arc::new(ElfFile::from_bytes(bytes).unwrap());
    assert!(image.has_unwind_info());
    let mut symbols = Symbols::new(image.clone(), DebugFileFinder::none());
    let code = image.segments().iter().find(|segment| segment.executable).unwrap().clone();
    let names: Vec<String> = (code.svma..code.svma + code.mem_size)
        .filter_map(|address| resolve(&mut symbols, address).pop())
        .map(|function| linkage(&function).to_owned())
        .collect();
    // The weak public name is preferred to `__vdso_clock_gettime`.
    assert!(names.iter().any(|name| name == "clock_gettime"), "{names:?}");
}

#[test]
fn the_running_kernel_is_readable_or_says_why_not() {
    let Ok(list) = std::fs::read_to_string("/proc/kallsyms") else {
        eprintln!("SKIPPED: needs /proc/kallsyms");
        return;
    };
    match KernelSymbols::read(list.as_bytes()) {
        Ok(symbols) => {
            assert!(symbols.len() > 1000, "{}", symbols.len());
            let line = list.lines().find_map(|line| line.strip_suffix(" T schedule")).unwrap();
            let start = u64::from_str_radix(line, 16).unwrap();
            let found = symbols.lookup(start).unwrap();
            assert_eq!((found.name, found.module, found.start), ("schedule", None, start));
            assert_eq!(symbols.lookup(start + 1), Some(found));
        }
        Err(KernelSymbolsError::Hidden | KernelSymbolsError::Empty) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_loader_and_the_c_library_of_this_machine_are_read() {
    for path in ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
        if !Path::new(path).exists() {
            continue;
        }
        let image = open(Path::new(path));
        let sections = image.unwind_sections();
        assert!(sections.eh_frame_hdr.is_some() && sections.eh_frame.is_some(), "{path}");
        // The size is known before reading; all users share the sections, and none keeps them.
        assert_eq!(image.unwind_size(), sections.bytes(), "{path}");
        assert!(Arc::ptr_eq(&sections, &image.unwind_sections()), "{path}");
        let kept = Arc::downgrade(&sections);
        drop(sections);
        assert!(kept.upgrade().is_none(), "{path}");
        assert!(image.segments().iter().any(|segment| segment.executable), "{path}");
    }
}

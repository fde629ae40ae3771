"""What is asked of every profiler's stacks, the same for all."""

import collections
import dataclasses

import elf

# Functions that nothing calls. A stack is whole if its outermost user frame is one of them.
ROOTS = {
    "_start",  # programs, and the dynamic linker
    "clone",  # threads of the C library: the outermost frame of a new thread is the system call's wrapper
    "__clone",
    "clone3",
    "__clone3",
    "__GI___clone3",
    "__start_context",  # makecontext
    "_rt0_amd64_linux",  # Go: programs, threads, goroutines
    "_rt0_amd64",
    "runtime.rt0_go",
    "runtime.mstart",
    "runtime.goexit",
    # Go: functions that put a goroutine aside and never return to it. On the thread's own stack nothing is above them, which
    # topofstack in its runtime/traceback.go said up to Go 1.16; later ones clear the frame pointer there ("as caller may
    # execute on another M", asm_amd64.s).
    "runtime.mcall",
    "runtime.morestack",
}


@dataclasses.dataclass(frozen=True)
class Frame:
    """One user frame. `function` tells functions of an image apart: its name, or where it begins, or the address."""

    function: str
    named: bool
    image: str
    # Virtual address as in the image's file, where the function has no name.
    address: int | None = None

    def is_root(self):
        if self.named:
            # Go's assembly functions have the name of their ABI behind them, versioned symbols a version.
            return self.function.split("@")[0].removesuffix(".abi0") in ROOTS
        file = elf.read(self.image)
        return file is not None and file.is_entry(self.address)

    @staticmethod
    def without_name(text, image, address):
        """A frame without a name: where its function begins, if the image's unwind table tells; else `text`."""
        file = elf.read(image)
        if file is not None and address is not None:
            address = file.function(address)
            text = f"{address:#x}"
        return Frame(text, False, image, address)

    def __str__(self):
        return f"{self.function} ({self.image.rsplit('/', 1)[-1]})"


@dataclasses.dataclass
class Verdict:
    """Adds up the samples of one run."""

    user_samples: int = 0
    rooted: int = 0
    frames: int = 0
    named: int = 0
    deepest: int = 0
    # Outermost frames that are no root, and functions without a name, by how many samples they are in.
    not_roots: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    unnamed: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def stack(self, frames, samples=1):
        """Judges a stack's user frames, innermost first. Each function counts once, however often it recurs."""
        if not frames:
            return
        self.user_samples += samples
        self.deepest = max(self.deepest, len(frames))
        self.root(frames[-1], samples)
        for frame in set(frames):
            self.function(frame, samples)

    def root(self, outermost, samples):
        """Judges an outermost user frame."""
        if outermost.is_root():
            self.rooted += samples
        else:
            self.not_roots[str(outermost)] += samples

    def function(self, frame, samples):
        """Counts a function of a stack."""
        self.frames += samples
        if frame.named:
            self.named += samples
        else:
            self.unnamed[str(frame)] += samples

    @property
    def rooted_percent(self):
        return 100 * self.rooted / self.user_samples if self.user_samples else None

    @property
    def named_percent(self):
        return 100 * self.named / self.frames if self.frames else None

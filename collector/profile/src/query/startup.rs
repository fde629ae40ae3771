//! The functions that start a program or a thread before its own first function runs.

use crate::ids::CostCentreId;
use crate::origin::{Origin, Origins};
use crate::profile::Profile;

/// What stands above the first function of a Python script.
const PYTHON: [&str; 16] = [
    "Py_BytesMain",
    "Py_Main",
    "Py_RunMain",
    "pymain_main",
    "pymain_run_python",
    "pymain_run_file",
    "pymain_run_file_obj",
    "pymain_run_module",
    "pymain_run_command",
    "_PyRun_AnyFileObject",
    "_PyRun_SimpleFileObject",
    "_PyRun_SimpleFile",
    "pyrun_file",
    "run_mod",
    "run_eval_code_obj",
    "PyEval_EvalCode",
];
/// With which the names of Python functions begin (`-X perf`).
const PYTHON_FUNCTION: &str = "py::";

impl Profile {
    /// The functions that only start the program or its threads, for views that people read: hidden, nothing that a program
    /// spends is attributed to another of its functions. Those of Python count only where Python functions have names, because
    /// else they are all that shows what the interpreter does.
    #[must_use]
    pub fn startup_functions(&self) -> Vec<CostCentreId> {
        let ids = || (0u32..).map(CostCentreId::new).zip(self.cost_centres());
        let has_python = ids()
            .any(|(_, centre)| centre.linkage_name.as_deref().is_some_and(|name| name.starts_with(PYTHON_FUNCTION)));
        let python = ids().map(|(id, _)| id).filter(|&id| has_python && PYTHON.contains(&self.name(id).as_ref()));
        Origins::of(self).all(Origin::Startup).chain(python).collect()
    }
}

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
const PYTHON_FUNCTION: &str = "py::";

impl Profile {
    /// The functions that only start the program or its threads, for views to hide. Python's count only where Python
    /// functions have names.
    #[must_use]
    pub fn startup_functions(&self) -> Vec<CostCentreId> {
        let ids = || (0u32..).map(CostCentreId::new).zip(self.cost_centres());
        let has_python = ids()
            .any(|(_, centre)| centre.linkage_name.as_deref().is_some_and(|name| name.starts_with(PYTHON_FUNCTION)));
        let python = ids().map(|(id, _)| id).filter(|&id| has_python && PYTHON.contains(&self.name(id).as_ref()));
        let origins = Origins::of(self);
        let idle = self.idle();
        let starts = origins.all(Origin::Startup).chain(python);
        starts.filter(|id| idle.get(id.index()).copied().unwrap_or(false)).collect()
    }

    /// Functions that were the leaf of less than one sample in 200: inlined program code in a thread's start must stay.
    pub(crate) fn idle(&self) -> Vec<bool> {
        let mut own = vec![0u64; self.cost_centres().len()];
        let mut total = 0u64;
        self.for_each_charge(|charge| {
            let leaf = self.contexts().leaf(charge.context).map(|leaf| self.real(leaf));
            if let Some(own) = leaf.and_then(|leaf| own.get_mut(leaf.index())) {
                *own = own.saturating_add(charge.samples);
            }
            total = total.saturating_add(charge.samples);
        });
        own.iter().map(|own| own.saturating_mul(200) <= total).collect()
    }
}

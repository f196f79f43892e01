//! Elements in registers: which variable holds them, and how values get into memory.

use crate::emit::printer::c_type;
use crate::emit::scalar::integer;
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, MemorySpace, NestTensor};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::schedule::Placement;
use sdfg::{Dtype, Expr};

/// Type of an element in global memory.
pub fn cuda_type(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::Bf16 => Some("bf16_t"),
        Dtype::F16 => Some("f16_t"),
        other => c_type(other),
    }
}

impl CudaPrinter<'_> {
    pub fn held_in(&self, data: &str) -> Option<Placement> {
        self.dialect.schedule.as_ref().and_then(|s| s.places.get(data).copied())
    }

    /// Whether an element has an address.
    pub fn in_memory(&self, data: &str) -> Result<bool, KernelError> {
        let tensor = self.tensor(data)?;
        Ok(matches!(tensor.space, MemorySpace::Heap { .. }) || matches!(self.held_in(data), Some(Placement::Shared | Placement::Scratch)))
    }

    /// Whether every strip of an element along a loop begins where a vector may, wherever its container does: containers begin at
    /// multiples of 16 bytes, and all ways from one strip to the next are multiples of a vector.
    pub fn is_even(&self, element: &Element, along: &ForLoop) -> Result<bool, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let Some(width) = self.dialect.schedule.as_ref().map(|s| s.width) else { return Ok(false) };
        // Values on chip have the type of the arithmetic; a team's part of memory has no alignment.
        let real = if self.double { 8 } else { 4 };
        let bytes = match (&tensor.space, self.held_in(&element.data)) {
            (MemorySpace::Heap { .. }, _) => tensor.dtype.bytes(1) as i64,
            (_, Some(Placement::Shared)) if self.nest.gemm.is_some() || self.extent(&element.data)? * real % 16 == 0 => real,
            _ => return Ok(false),
        };
        let vector = width.min(16 / bytes.max(1)).max(1);
        let (strides, _, first) = self.strides(&element.data)?;
        let whole = |(subscript, stride): (&Expr, &i64)| match subscript {
            Expr::Sym(name) if *name == along.index => *stride == 1,
            Expr::Int(at) => at * stride % vector == 0,
            _ => stride % vector == 0,
        };
        Ok(first % vector == 0 && element.subscripts.iter().zip(&strides).all(whole))
    }

    /// Values of a container that one thread holds; `None` if they are in memory.
    pub fn registers(&self, data: &str) -> Result<Option<i64>, KernelError> {
        let tensor = self.tensor(data)?;
        let (Some(schedule), Some(place)) = (&self.dialect.schedule, self.held_in(data)) else { return Ok(None) };
        let dims = schedule.dims(self.nest, data, tensor);
        let lanes = schedule.team() * schedule.width;
        Ok(match place {
            Placement::Replicated => Some(dims.iter().map(|n| tensor.shape[*n]).product()),
            Placement::Owned { along } => {
                let others: i64 = dims.iter().filter(|n| Some(**n) != along).map(|n| tensor.shape[*n]).product();
                let along = along.filter(|n| dims.contains(n)).map_or(1, |n| (tensor.shape[n] + lanes - 1) / lanes);
                Some(others * along * schedule.width)
            }
            Placement::Strip | Placement::Line | Placement::Shared | Placement::Scratch => None,
        })
    }

    /// The variable that holds an element, if a register does.
    pub fn register(&mut self, element: &Element) -> Result<Option<String>, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let (Some(schedule), Some(place)) = (self.dialect.schedule.clone(), self.held_in(&element.data)) else { return Ok(None) };
        let along = match place {
            Placement::Replicated => None,
            Placement::Owned { along } => along,
            Placement::Strip => return Ok(Some(format!("{}[w]", self.identifier(&element.data)))),
            Placement::Line => return Ok(Some(format!("{}[half]", self.identifier(&element.data)))),
            Placement::Shared | Placement::Scratch => return Ok(None),
        };
        let name = self.identifier(&element.data);
        let dims = schedule.dims(self.nest, &element.data, tensor);
        let lanes = schedule.team() * schedule.width;
        let (mut terms, mut next) = (Vec::new(), 1);
        if matches!(place, Placement::Owned { .. }) {
            terms.push("w".to_string());
            next = schedule.width;
            if let Some(n) = along.filter(|n| dims.contains(n)) {
                terms.push(format!("slot * {next}"));
                next *= (tensor.shape[n] + lanes - 1) / lanes;
            }
        }
        for n in dims.iter().rev().filter(|n| Some(**n) != along) {
            terms.push(format!("{} * {next}", integer(&element.subscripts[*n], self)));
            next *= tensor.shape[*n];
        }
        Ok(Some(if terms.is_empty() { name } else { format!("{name}[{}]", terms.join(" + ")) }))
    }

    /// Declares the registers of a container, under the value that they begin with.
    pub fn declare_registers(&mut self, data: &str, identity: Option<&str>, depth: usize) -> Result<(), KernelError> {
        let Some(count) = self.registers(data)? else { return Ok(()) };
        let name = self.identifier(data);
        let scalar = self.held_in(data) == Some(Placement::Replicated) && self.dims_of(data)?.is_empty();
        match identity {
            Some(identity) if scalar => self.line(depth, format!("real {name} = {identity};")),
            None if scalar => self.line(depth, format!("real {name};")),
            _ => self.line(depth, format!("real {name}[{count}];")),
        }
        if let Some(identity) = identity.filter(|_| !scalar) {
            self.fill_registers(data, identity, depth)?;
        }
        Ok(())
    }

    /// Sets all registers of a container to a value.
    pub fn fill_registers(&mut self, data: &str, value: &str, depth: usize) -> Result<(), KernelError> {
        let Some(count) = self.registers(data)? else { return Ok(()) };
        let name = self.identifier(data);
        if self.held_in(data) == Some(Placement::Replicated) && self.dims_of(data)?.is_empty() {
            self.line(depth, format!("{name} = {value};"));
        } else {
            self.line(depth, "#pragma unroll");
            self.line(depth, format!("for (int e = 0; e < {count}; ++e) {name}[e] = {value};"));
        }
        Ok(())
    }

    fn dims_of(&self, data: &str) -> Result<Vec<usize>, KernelError> {
        let tensor = self.tensor(data)?;
        Ok(self.dialect.schedule.as_ref().map_or(vec![], |s| s.dims(self.nest, data, tensor)))
    }

    /// A store in CUDA. A value that all threads of a team compute is stored by the team's first thread.
    pub fn store_cuda(&self, element: &Element, tensor: &NestTensor, place: &str, text: &str) -> Result<String, KernelError> {
        if !self.in_memory(&element.data)? || self.streamed.iter().any(|r| r.element == *element) {
            return Ok(format!("{place} = {text};"));
        }
        let alone = if self.dialect.uniform { "member == 0" } else { "" };
        match (&tensor.space, cuda_type(tensor.dtype)) {
            (MemorySpace::Heap { .. }, Some(kind)) => Ok(format!("{}{place} = From<{kind}>::real_({text});", self.if_active(alone))),
            (MemorySpace::Heap { .. }, None) => {
                Err(self.unsupported(format!("`{}` holds bits, which kernels cannot address", element.data)))
            }
            _ if self.dialect.uniform => Ok(format!("if ({alone}) {place} = {text};")),
            _ => Ok(format!("{place} = {text};")),
        }
    }
}

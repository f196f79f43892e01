//! The recipes that the peers know, and the parameters of one that they need.
//!
//! A recipe is recognised by its operations: they must be those of a shipped recipe, up to sizes, the order of its tensors' dims, dropout
//! rates and the epsilons of its normalizations. So a peer always computes the recipe that it is compared with.

use super::CompareError;
use crate::load::{Overrides, Recipe, load_str};
use sdfg::{Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use serde::Serialize;

/// The recipes that the peers know, each with its model family.
const KNOWN: [(&str, &str, Family); 3] = [
    ("bert-base-encoder", include_str!("../../bert-base-encoder.yaml"), Family::Encoder(Activation::Gelu)),
    ("bert-large-encoder", include_str!("../../bert-large-encoder.yaml"), Family::Encoder(Activation::Relu)),
    ("mha", include_str!("../../mha.yaml"), Family::Attention),
];

/// Networks that the peers of the forward pass know by name, at the sizes of their recipes.
const NETWORKS: [(&str, &str); 12] = [
    ("vgg-19", include_str!("../../vgg-19.yaml")),
    ("googlenet", include_str!("../../googlenet.yaml")),
    ("inception-v3", include_str!("../../inception-v3.yaml")),
    ("resnet-18", include_str!("../../resnet-18.yaml")),
    ("resnet-50", include_str!("../../resnet-50.yaml")),
    ("squeezenet-1.0", include_str!("../../squeezenet-1.0.yaml")),
    ("squeezenet-1.1", include_str!("../../squeezenet-1.1.yaml")),
    ("mobilenet-v1", include_str!("../../mobilenet-v1.yaml")),
    ("cross-layer/a1", include_str!("../../cross-layer/a1.yaml")),
    ("cross-layer/a2", include_str!("../../cross-layer/a2.yaml")),
    ("cross-layer/b1", include_str!("../../cross-layer/b1.yaml")),
    ("cross-layer/c1", include_str!("../../cross-layer/c1.yaml")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Attention,
    Encoder(Activation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Relu,
    Gelu,
}

/// Dropout rates by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// On the attention's weights.
    pub attention: f64,
    /// On the attention's result, before the residual.
    pub attended: f64,
    /// On the activation of the feed-forward part.
    pub hidden: f64,
    /// On the feed-forward part's result, before the residual.
    pub fed: f64,
}

/// The description of a model for the workers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum PeerModel {
    /// Multi-head self-attention alone.
    Attention { heads: usize, size: usize, rates: Rates },
    /// An encoder layer, normalized after each residual.
    Encoder { heads: usize, size: usize, rates: Rates, activation: Activation, eps: [f64; 2] },
    /// A convolutional network by the name of its recipe, with the names of its tensors in the order of the recipe.
    Network { network: String, images: Vec<String>, parameters: Vec<String>, output: String },
}

impl PeerModel {
    pub fn has_relu(&self) -> bool {
        matches!(self, PeerModel::Encoder { activation: Activation::Relu, .. })
    }

    pub fn has_dropout(&self) -> bool {
        match self {
            PeerModel::Attention { rates, .. } | PeerModel::Encoder { rates, .. } => *rates != Rates::default(),
            PeerModel::Network { .. } => false,
        }
    }

    pub fn is_network(&self) -> bool {
        matches!(self, PeerModel::Network { .. })
    }

    /// # Errors
    /// [`CompareError::Unsupported`] for a recipe that the peers do not know.
    pub fn of(recipe: &Recipe) -> Result<PeerModel, CompareError> {
        let program = &recipe.program;
        let refuse = |why: &str| CompareError::Unsupported { model: program.name.clone(), why: why.to_string(), known: known() };
        if let Some(network) = network(program)? {
            return Ok(network);
        }
        if recipe.train.as_ref().is_none_or(|train| train.upstream != ["y"]) {
            return Err(refuse("it has no `train: {upstream: y}`"));
        }
        let dtype = stored(program);
        if !matches!(dtype, Dtype::F32 | Dtype::Bf16) {
            return Err(refuse("its dtype is neither f32 nor bf16"));
        }
        let (own, own_choices) = neutral(program);
        let narrow = weights(program) != Dtype::F32;
        for ((_, text, family), no_dropout) in KNOWN.into_iter().flat_map(|known| [(known, false), (known, true)]) {
            let shipped = rescaled(text, (dtype, narrow), no_dropout, program)?;
            let (operations, choices) = neutral(&shipped);
            let types = |p: &Sdfg| p.containers.values().map(|c| c.dtype).collect::<Vec<_>>();
            if operations != own
                || types(&shipped) != types(program)
                || choices.shape() != own_choices.shape()
                || boundary(&shipped) != boundary(program)
            {
                continue;
            }
            let size = |dim: &str| program.size_of(dim).eval(&program.sizes).map(|n| n as usize).map_err(|_| refuse("a size is not bound"));
            let (heads, size) = (size("h")?, size("p")?);
            return match (family, own_choices.rates.as_slice(), own_choices.eps.as_slice()) {
                (Family::Attention, [], []) => Ok(PeerModel::Attention { heads, size, rates: Rates::default() }),
                (Family::Encoder(activation), [], [first, second]) => {
                    Ok(PeerModel::Encoder { heads, size, rates: Rates::default(), activation, eps: [*first, *second] })
                }
                (Family::Attention, [attention], []) => {
                    Ok(PeerModel::Attention { heads, size, rates: Rates { attention: *attention, ..Rates::default() } })
                }
                (Family::Encoder(activation), [attention, attended, hidden, fed], [first, second]) => {
                    let rates = Rates { attention: *attention, attended: *attended, hidden: *hidden, fed: *fed };
                    Ok(PeerModel::Encoder { heads, size, rates, activation, eps: [*first, *second] })
                }
                _ => Err(refuse("its dropouts or normalizations are not those of the shipped recipe")),
            };
        }
        Err(refuse("its operations are those of no recipe that they do know"))
    }
}

/// The names of the recipes that the peers know.
pub fn known() -> String {
    let names = KNOWN.iter().map(|(name, _, _)| name).chain(NETWORKS.iter().map(|(name, _)| name));
    names.map(|name| format!("{name}.yaml")).collect::<Vec<_>>().join(", ")
}

/// The program as a network that the peers know: one whose operations are those of its recipe, in f32.
fn network(program: &Sdfg) -> Result<Option<PeerModel>, CompareError> {
    for (name, text) in NETWORKS {
        // The others are not read.
        if !text.contains(&format!("\nmodel: {}\n", program.name)) {
            continue;
        }
        let shipped = load_str("shipped recipe", text, &[]).map_err(crate::pipeline::PipelineError::from)?.program;
        let plain = program.containers.values().all(|c| c.dtype == Dtype::F32);
        if !plain || neutral(&shipped) != neutral(program) || boundary(&shipped) != boundary(program) {
            return Ok(None);
        }
        let of = |role: Role| program.containers.values().filter(move |c| c.role == role).map(|c| c.name.clone());
        let (images, parameters) = (of(Role::Input).collect(), of(Role::Parameter).collect());
        let Some(output) = of(Role::Output).next() else { return Ok(None) };
        return Ok(Some(PeerModel::Network { network: name.into(), images, parameters, output }));
    }
    Ok(None)
}

/// The type of activations in a recipe that the peers know: all have the same.
pub fn stored(program: &Sdfg) -> Dtype {
    program.containers.values().find(|c| c.role == sdfg::Role::Input).map_or(Dtype::F32, |c| c.dtype)
}

/// The type of weights in a recipe that the peers know: that of the narrowest parameters.
pub fn weights(program: &Sdfg) -> Dtype {
    let parameters = program.containers.values().filter(|c| c.role == sdfg::Role::Parameter);
    parameters.map(|c| c.dtype).min_by_key(|dtype| dtype.bytes(1)).unwrap_or(Dtype::F32)
}

/// A shipped recipe at the sizes of `program`, in a type, with weights in that type if `narrow`, with or without its dropouts.
fn rescaled(text: &str, (dtype, narrow): (Dtype, bool), no_dropout: bool, program: &Sdfg) -> Result<Sdfg, CompareError> {
    let load = |sizes: Vec<(String, i64)>| {
        let overrides = Overrides { sizes, dtype: Some(dtype), no_dropout, narrow };
        load_str("shipped recipe", text, &overrides).map_err(crate::pipeline::PipelineError::from)
    };
    let shipped = load(vec![])?.program;
    // A dim that names another's size (`k: j`) takes no override of its own.
    let own = shipped.dims.iter().filter(|(dim, size)| shipped.dims.values().position(|s| s == *size) == shipped.dims.get_index_of(*dim));
    let overrides: Vec<(String, i64)> =
        own.filter_map(|(dim, _)| Some((dim.clone(), program.dims.get(dim)?.eval(&program.sizes).ok()?))).collect();
    Ok(load(overrides)?.program)
}

/// The free parameters of a recipe, in order of appearance.
#[derive(Debug, Default, PartialEq)]
struct Choices {
    rates: Vec<f64>,
    eps: Vec<f64>,
}

impl Choices {
    fn shape(&self) -> (usize, usize) {
        (self.rates.len(), self.eps.len())
    }
}

/// Names and sizes of a program's inputs, in the order of the dims' names.
fn boundary(program: &Sdfg) -> Vec<(&str, Vec<(&str, usize)>)> {
    let given = crate::pipeline::oracle::tensors::given(program).into_iter();
    let mut found: Vec<_> = given
        .map(|c| {
            let shape = program.shape_of(&c.name).unwrap_or_default();
            let mut dims: Vec<_> = c.dims.iter().map(String::as_str).zip(shape).collect();
            dims.sort_unstable();
            (c.name.as_str(), dims)
        })
        .collect();
    found.sort_unstable();
    found
}

/// Puts an operand's subscripts into the order of the names of its container's dims.
fn reorder(operand: &mut Operand, program: &Sdfg) {
    let Some(container) = program.containers.get(&operand.data) else { return };
    let mut order: Vec<usize> = (0..operand.subscripts.len()).collect();
    order.sort_by_key(|n| container.dims.get(*n));
    operand.subscripts = order.into_iter().map(|n| operand.subscripts[n].clone()).collect();
}

/// The operations without origins, rates and epsilons, as if all tensors had their dims in the order of their names; and these.
fn neutral(program: &Sdfg) -> (Vec<Operation>, Choices) {
    let mut choices = Choices::default();
    let units = program.units();
    let operations = units.into_iter().filter_map(|(_, _, unit)| match unit {
        Unit::Operation(operation) => Some(operation),
        _ => None,
    });
    let mut found: Vec<Operation> = operations
        .map(|mut operation| {
            operation.origin = None;
            operation.inputs.iter_mut().chain(&mut operation.outputs).for_each(|operand| reorder(operand, program));
            match &mut operation.op {
                Op::Elementwise { code, .. } | Op::Reduce { code, .. } => {
                    *code = code.rewrite(&mut |s| match s {
                        // The element that a mask is drawn for depends on the order of dims.
                        Scalar::Keep { stream, rate, .. } => {
                            choices.rates.push(rate);
                            Scalar::Keep { stream, element: Expr::Int(0), rate: 0.0 }
                        }
                        Scalar::Kept { stream, rate } => {
                            choices.rates.push(rate);
                            Scalar::Kept { stream, rate: 0.0 }
                        }
                        other => other,
                    });
                }
                Op::Normalize { eps, .. } => choices.eps.push(std::mem::take(eps)),
                _ => {}
            }
            operation
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    (found, choices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::load_str;

    fn of(text: &str, overrides: &[(String, i64)]) -> Result<PeerModel, CompareError> {
        PeerModel::of(&load_str("test.yaml", text, overrides).unwrap())
    }

    fn text(name: &str) -> &'static str {
        KNOWN.iter().find(|k| k.0 == name).unwrap().1
    }

    #[test]
    fn shipped_recipes_are_known_at_any_size() {
        for (name, text, _) in KNOWN {
            assert!(of(text, &[]).is_ok(), "{name}");
            assert!(of(text, &[("b".into(), 3), ("j".into(), 7)]).is_ok(), "{name}");
            assert!(of(&text.replace("dtype: f32", "dtype: bf16"), &[]).is_ok(), "{name}");
            let narrow = Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() };
            let recipe = load_str("test.yaml", text, &narrow).unwrap();
            assert!(PeerModel::of(&recipe).is_ok() && weights(&recipe.program) == Dtype::Bf16, "{name}");
            assert_eq!(weights(&load_str("test.yaml", text, &[]).unwrap().program), Dtype::F32);
        }
        let rates = Rates { attention: 0.1, attended: 0.1, hidden: 0.1, fed: 0.1 };
        let known = of(text("bert-base-encoder"), &[]).unwrap();
        assert_eq!(known, PeerModel::Encoder { heads: 12, size: 64, rates, activation: Activation::Gelu, eps: [1e-12; 2] });
    }

    #[test]
    fn rates_and_epsilons_come_from_the_recipe() {
        let changed = text("bert-large-encoder").replacen("over: k), rate: 0.1", "over: k), rate: 0.25", 1).replacen("1e-5", "1e-3", 1);
        let Ok(PeerModel::Encoder { rates, eps, .. }) = of(&changed, &[]) else { panic!("not known") };
        assert_eq!(rates, Rates { attention: 0.25, attended: 0.1, hidden: 0.1, fed: 0.1 });
        assert_eq!(eps, [1e-3, 1e-5]);
    }

    #[test]
    fn without_its_dropouts_a_recipe_is_known() {
        for (name, text, _) in KNOWN {
            let overrides = Overrides { no_dropout: true, ..Overrides::default() };
            let known = PeerModel::of(&load_str("test.yaml", text, &overrides).unwrap());
            assert!(!known.unwrap().has_dropout(), "{name}");
            let zero = of(&text.replace("rate: 0.1", "rate: 0"), &[]);
            assert!(!zero.unwrap().has_dropout(), "{name}");
        }
        // A recipe without only some of its dropouts is another model, which the peers do not know.
        assert!(of(&text("bert-base-encoder").replacen("rate: 0.1", "rate: 0", 1), &[]).is_err());
    }

    /// The order of a tensor's dims does not change the computation.
    #[test]
    fn the_order_of_dims_is_free() {
        let (own, base) = (text("mha"), of(text("mha"), &[]).unwrap());
        let turned = own.replace("[p, h, i]", "[h, p, i]").replace("[p,h,i]", "[h,p,i]").replace("[i,b,j]", "[b,j,i]");
        let turned = turned.replace("[i, b, j]", "[b, j, i]").replace("[i,b,k]", "[b,k,i]").replace("vv[p,h,b,k]", "vv[b,k,h,p]");
        assert_eq!(of(&turned, &[]).unwrap(), base);
        let pytorch = include_str!("../../bert-large-pytorch.yaml");
        assert_eq!(of(pytorch, &[]).unwrap(), of(text("bert-large-encoder"), &[]).unwrap());
        // The roles of dims may not change.
        assert!(of(&own.replace("gamma[p,h,b,j] = vv[p,h,b,k]", "gamma[p,h,b,j] = kk[p,h,b,k]"), &[]).is_err());
        assert!(
            of(&own.replace("alpha[h,b,j,k] = dropout(softmax(beta, over: k)", "alpha[h,b,j,k] = dropout(softmax(beta, over: j)"), &[])
                .is_err()
        );
    }

    #[test]
    fn networks_are_known_at_the_sizes_of_their_recipes() {
        let text = include_str!("../../squeezenet-1.1.yaml");
        let Ok(PeerModel::Network { network, images, parameters, output }) = of(text, &[]) else { panic!("not known") };
        assert_eq!((network.as_str(), images, output.as_str()), ("squeezenet-1.1", vec!["x".to_string()], "prob"));
        assert_eq!(parameters[..2], ["conv1_k", "conv1_b"]);
        assert!(of(text, &[("h".into(), 131)]).is_err());
        assert!(of(&text.replace("relu(y)", "silu(y)"), &[]).is_err());
    }

    #[test]
    fn another_model_is_refused() {
        let base = text("bert-base-encoder");
        for (from, to) in
            [("gelu(w1", "tanh(w1"), ("(1 / sqrt(size(p))) * ", ""), ("dtype: f32", "dtype: f64"), ("train: {upstream: y}", "")]
        {
            assert!(base.contains(from));
            let refused = of(&base.replace(from, to), &[]).unwrap_err();
            assert_eq!(refused.exit_code(), 2);
            assert!(refused.to_string().contains("mha.yaml"), "{refused}");
        }
        assert!(of(include_str!("../../softmax.yaml"), &[]).is_err());
        assert!(of(include_str!("../../gpt2-decoder.yaml"), &[]).is_err());
        assert!(of(include_str!("../../mha-cross.yaml"), &[]).is_err());
    }
}

"What the contract tests share: families, models whose weights are large enough that a leak shows, batches (no tests here)"
import copy, functools, warnings
import torch
from torch import Tensor
from fastai.callback.core import Callback
from transformers import AutoModelForCausalLM
from fastformers.text.core import TensorTokens
from fastformers.data.block import PadTokens, classifier_dls, lm_dls
from fastformers.models.heads import PoolingHead
from fastformers.models.core import LanguageModel, TextClassifier
from fastformers.models.families import is_causal, layer_groups
from fastformers.models.load import load_body, load_hf
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok
from fastformers.text.encode import HFTokenizer

torch.set_num_threads(1) # tiny networks: six times as fast as with two threads on two busy cores

masked = 'bert roberta distilbert albert xlm xlm-roberta electra deberta-v2 modernbert mpnet'.split()
causal = 'openai-gpt gpt2 llama'.split()
families = masked + causal + ['xlnet']
styles = 'bert roberta xlm_roberta xlnet gpt2 llama'.split()
texts = tiny_df().text.tolist()
pairs = list(zip(tiny_pairs().text_a, tiny_pairs().text_b))

def loud(model, by=8., seed=0):
    "`model` in eval mode; weights of 0.02 would keep every error below any tolerance, so matrices are multiplied by `by` and biases drawn"
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim()>1: p.mul_(by)
            else: p.add_(torch.randn_like(p)*.1)
    return model.eval()

def objective(family, **kwargs): return (CLM if family in causal else MLM)(tiny_tok(family), **kwargs)

@functools.cache
def language_model(family):
    "A `LanguageModel` of `family`, shared by tests that leave it as it is"
    torch.manual_seed(0)
    cfg = tiny_arch(family)
    return loud(LanguageModel(*load_hf(AutoModelForCausalLM, cfg)) if family=='xlnet' else objective(family).build(cfg))

@functools.cache
def classifier(family):
    "A `TextClassifier` of `family`, shared by tests that leave it as it is"
    torch.manual_seed(0)
    body = load_body(tiny_arch(family))[0]
    return loud(TextClassifier(body, None, PoolingHead(32, 3, at='last' if is_causal(body.config) else 'cls')))

def tokenizer(family, side=None, max_len=None):
    "The `HFTokenizer` of `family`, padding on `side`, by default the family's own"
    tok = tiny_tok(family)
    if side: tok.padding_side = side
    return HFTokenizer(tok, max_len)

def batch(tok, items):
    "`items`, texts or pairs, padded to one `TensorTokens` `(bs, sl)`"
    xs = [o for o, in PadTokens(tok)([(x,) for x in tok.encode_batch(items)])]
    return torch.stack([x.as_subclass(Tensor) for x in xs]).as_subclass(TensorTokens)

def all_predicted(x): return x.replace(predicted=x.real)
def gap(a, b): return float((a.detach().double()-b.detach().double()).abs().max())
def quiet(learn):
    "`learn` without progress bars and printed rows"
    from fastai.callback.progress import ProgressCallback
    learn.remove_cbs(ProgressCallback); learn.logger = lambda *a, **k: None
    return learn

def noisy(model, k):
    "A copy of `model` with noise on the parameters of its layer group `k`; `model` itself for None"
    if k is None: return model
    model = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in layer_groups(model)[k]: p.add_(torch.randn_like(p)*.1)
    return model

class Power(Callback):
    "Cut after `n` batches of training"
    order = 1001
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.training and self.train_iter>=self.n: raise KeyboardInterrupt('power cut')

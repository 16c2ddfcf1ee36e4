"What the package expects of each objective, task and family, and that `fastformers.testing` finds what is broken in others"
import pytest, torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from fastformers.models.core import LanguageModel
from fastformers.models.families import FamilyMeta, block_modules, family_meta, layer_groups
from fastformers.models.load import load_body
from fastformers.objectives.core import Objective, TokenLoss, objectives
from fastformers.objectives.metrics import token_metrics
from fastformers.objectives.mlm import MLM
from fastformers.tasks.core import SingleLabel, tasks
from fastformers.testing import check_family, check_objective, check_task, tiny_arch, tiny_families

pytestmark = pytest.mark.exact

def ours(registry): return sorted(k for k,o in registry.load().items() if o.__module__.startswith('fastformers.'))

@pytest.mark.parametrize('name', [o for o in ours(objectives) if objectives[o].auto_cls is not AutoModel]) # those that predict tokens
def test_an_objective(name): check_objective(objectives[name], apart=name not in ('nsp','joint'))

@pytest.mark.parametrize('name', ours(tasks))
def test_a_task(name): check_task(tasks[name])

@pytest.mark.parametrize('family', tiny_families)
def test_a_family(family): check_family(tiny_arch(family))

small = dict(vocab_size=1024, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, pad_token_id=0)
gemma = small | dict(num_hidden_layers=4, num_key_value_heads=2, head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=1024,
                     num_kv_shared_layers=0, layer_types=['sliding_attention','full_attention']*2)
rope = dict(full_attention=dict(rope_type='default', rope_theta=10000., partial_rotary_factor=.5))
odd = { # family -> its config, parameters that act below the blocks but are registered after them; hrm_text has two stacks of blocks
    'gemma4_text':(gemma | dict(global_head_dim=8), 'embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm'),
    'gemma4':(dict(text_config=gemma | dict(global_head_dim=8)), 'language_model.embed_tokens_per_layer language_model.per_layer_model_projection'),
    'gemma3n_text':(gemma | dict(altup_num_inputs=2, laurel_rank=4, activation_sparsity_pattern=[0.]*4), 'embed_tokens_per_layer altup_projections.0'),
    'neomme':(small | dict(num_key_value_heads=2, head_dim=8, embedding_rank=16, layer_types=['full_attention']*3, rope_parameters=rope), 'value_embeddings'),
    'hrm_text':(small | dict(num_key_value_heads=4, num_layers_per_stack=2, head_dim=8, H_cycles=2, L_cycles=2), ''),
    'canine':(small | dict(hidden_dropout_prob=0., num_hash_buckets=64), 'chars_to_molecules.conv projection.conv'),
    'cpmant':(small | dict(dim_head=8, dim_ff=64, prompt_types=4, prompt_length=2), 'input_embedding segment_embedding position_bias')}

@pytest.mark.parametrize('family', odd)
def test_only_what_follows_the_last_block_trains_after_freeze(family):
    config = AutoConfig.for_model(family, **odd[family][0])
    check_family(config)
    body = load_body(config)[0]
    names = {id(p):k for k,p in body.named_parameters()}
    low,*_ = layer_groups(body)
    for o in odd[family][1].split(): assert any(names[id(p)].startswith(o) for p in low), o
    blocks = {id(p) for b in block_modules(body) for m in b for p in m.parameters()}
    assert family!='hrm_text' or all(id(p) in blocks for k,p in body.named_parameters() if '_module.layers' in k)

# ---- broken ones

class Hidden(Objective):
    "Hide each third ordinary token"
    auto_cls,metrics = AutoModelForMaskedLM,property(token_metrics)
    @classmethod
    def supports(cls, config): return MLM.supports(config)
    def mask(self, x): return self.ordinary(x) & (x.attention_mask.cumsum(1)%3==0)
    def encodes(self, b):
        x,m = b[0],self.mask(b[0])
        return x.replace(ids=torch.where(m, self.tok.mask_token_id, x.ids), predicted=m), torch.where(m, x.ids, -100)

class Drawn(Hidden):
    def mask(self, x): return self.ordinary(x) & (torch.rand(x.shape)<.3)
class ByRow(Hidden):
    def mask(self, x): return super().mask(x) & (torch.arange(len(x))%2==0)[:,None]
class BySize(Hidden):
    def mask(self, x): return super().mask(x) & torch.tensor(len(x)>1)
class ByColumn(Hidden):
    def mask(self, x): return self.ordinary(x) & (torch.arange(x.shape[1])%3==0)
class EachPass(Hidden):
    def mask(self, x): return self.ordinary(x) & ((x.attention_mask.cumsum(1)+self.passes%2)%3==0)
class WithPadding(Hidden):
    def mask(self, x): return super().mask(x) | ~x.real
class WithSpecials(Hidden):
    def mask(self, x): return x.real & (x.attention_mask.cumsum(1)%3==1)
class Turned(LanguageModel):
    def forward(self, x): return super().forward(x).flip(0)
class TurnedRows(Hidden): model_cls = Turned
class ByRows(Hidden):
    def row_weights(self, pred, *yb): return torch.ones(len(pred))
class NaNLoss(TokenLoss):
    def __call__(self, pred, y, reduction=None): return super().__call__(pred, y, 'sum')/(y!=-100).sum()
class Divided(Hidden):
    def __init__(self, tok, seed=42): super().__init__(tok, seed); self.loss_func = NaNLoss()
class OneShown(Hidden):
    def decodes(self, b): return b[:1]

broken = {Drawn:'depend on more than seed', ByRow:'the order of the rows', BySize:'the batch size', ByColumn:'depend on padding',
          EachPass:'validation draws other masks on each pass', WithPadding:'padding is predicted', WithSpecials:'special tokens are predicted',
          TurnedRows:'its place in the batch', ByRows:'weighted by `weight`', Divided:'nothing to predict is not 0', OneShown:'`decodes`'}

def test_a_plain_objective_passes(): check_objective(Hidden)

@pytest.mark.parametrize('cls', broken, ids=lambda o: o.__name__)
def test_a_broken_objective_is_named(cls):
    with pytest.raises(AssertionError, match=f'{cls.__name__}: .*{broken[cls]}'): check_objective(cls)

@pytest.mark.parametrize('method,words', [(dict(row_score=lambda self, pred, y, x=None: pred.max()), 'one number for each row'),
    (dict(to_dict=lambda self: dict(name='broken')), 'from_dict'), (dict(answers=lambda self, *args, **kwargs: []), 'one answer for each text'),
    (dict(scores=lambda self, logits: logits.float().sigmoid()), 'does not answer as `learn.predict`')], ids=['score','dict','answers','scores'])
def test_a_broken_task_is_named(method, words):
    cls = type('Broken', (SingleLabel,), dict(method, name='broken', matches=classmethod(lambda cls, df, label_col: False)))
    try:
        with pytest.raises(AssertionError, match=f'Broken: .*{words}'): check_task(cls)
    finally: del tasks['broken']

def test_a_broken_family_is_named(monkeypatch):
    monkeypatch.setitem(family_meta, 'fnet', FamilyMeta(padding=True))
    with pytest.raises(AssertionError, match='fnet: padding changes predictions'): check_family(tiny_arch('fnet'))
    monkeypatch.setitem(family_meta, 'funnel', FamilyMeta(chain=('encoder.blocks','encoder.blocks'), min_len=5))
    with pytest.raises(AssertionError, match='funnel: the layer groups are not'): check_family(tiny_arch('funnel'))
    monkeypatch.delitem(family_meta, 'deberta-v2')
    with pytest.raises(AssertionError, match='deberta-v2: the top group.*acts below the last block'): check_family(tiny_arch('deberta-v2'))

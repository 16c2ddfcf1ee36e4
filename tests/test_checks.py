"What the package expects of each objective, task and family, and that `fastformers.testing` finds what is broken in others"
import pytest, torch
from transformers import AutoModelForMaskedLM
from fastformers.models.core import LanguageModel
from fastformers.models.families import FamilyMeta, family_meta
from fastformers.objectives.core import Objective, TokenLoss, objectives
from fastformers.objectives.metrics import token_metrics
from fastformers.objectives.mlm import MLM
from fastformers.tasks.core import SingleLabel, tasks
from fastformers.testing import check_family, check_objective, check_task, tiny_arch, tiny_families

pytestmark = pytest.mark.exact

def ours(registry): return sorted(k for k,o in registry.load().items() if o.__module__.startswith('fastformers.'))

@pytest.mark.parametrize('name', ours(objectives))
def test_an_objective(name): check_objective(objectives[name], apart=name not in ('nsp','joint'))

@pytest.mark.parametrize('name', ours(tasks))
def test_a_task(name): check_task(tasks[name])

@pytest.mark.parametrize('family', tiny_families)
def test_a_family(family): check_family(tiny_arch(family))

# ---- broken ones

class Hidden(Objective):
    "Hide each third ordinary token"
    auto_cls,metrics = AutoModelForMaskedLM,property(token_metrics)
    @classmethod
    def fits(cls, config): return MLM.fits(config)
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

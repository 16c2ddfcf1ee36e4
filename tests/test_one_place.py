"A new part of each kind is written in one place, outside the package, and trains: DESIGN's table of where to change what"
import importlib, sys, pytest, torch
from fastformers.compare.entries import entries, entry
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
from fastformers.interpret.attribution import attributions
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.save import as_predictor
from fastformers.models.adapters import adapter_methods
from fastformers.models.families import family_meta
from fastformers.models.heads import heads, pools
from fastformers.objectives.core import objectives
from fastformers.callback.schedule import anneals, schedules
from fastformers.tasks.core import tasks
from fastformers.testing import check_family, check_objective, check_task, tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm
from test_contracts_common import quiet

parts = dict(
    objective = """
import torch
from transformers import AutoModelForMaskedLM
from fastformers.objectives.core import Objective
from fastformers.objectives.metrics import token_metrics

class FirstToken(Objective):
    "Hide the first ordinary token of each row"
    auto_cls,metrics = AutoModelForMaskedLM,property(token_metrics)
    def encodes(self, b):
        x,ok = b[0],self.ordinary(b[0])
        m = ok & (ok.cumsum(1)==1)
        return x.replace(ids=torch.where(m, self.tok.mask_token_id, x.ids), predicted=m), torch.where(m, x.ids, -100)
""", task = """
import torch
from fastformers.tasks.core import SingleLabel

class Stars(SingleLabel):
    "Predict one of a few ordered classes, and score an answer by how near it is"
    name,summary = 'stars','one of {n} ordered labels a text'
    @classmethod
    def matches(cls, df, label_col): return False
    def row_score(self, pred, y, x=None): return -(pred.argmax(1)-y).abs().float()
    def metrics(self): return [lambda pred, y: self.row_score(pred, y).mean()]
""", head = """
from torch import nn
from fastformers.models.heads import heads

@heads.add
class GatedHead(nn.Module):
    "Average the real tokens that a gate lets through"
    def __init__(self, nf, n_out):
        super().__init__()
        self.gate,self.lin = nn.Linear(nf, 1),nn.Linear(nf, n_out)
        self.spec = {'class':'GatedHead', 'nf':nf, 'n_out':n_out}
    def forward(self, h, mask):
        w = self.gate(h).sigmoid()*mask[...,None]
        return self.lin((h*w).sum(1)/w.sum(1).clamp(min=1e-6))
""", pooling = """
from fastformers.models.heads import pools

@pools.add
def norm_pool(h, mask): return (h.float()**2).masked_fill(~mask[...,None], 0.).sum(1).sqrt()
""", schedule = """
from fastformers.callback.schedule import Schedule, anneals, schedules

@schedules.add
def bottom_first(n_groups):
    "Train the embeddings with the head, then all groups"
    return Schedule([[1.]+[0.]*(n_groups-2)+[1.], [1.]*n_groups])

@anneals.add
def constant(pct): return 1.
""", adapter = """
from fastformers.models.adapters import adapter_methods, train_only

@adapter_methods.add
def norms_only(model):
    "Train the norms of the body"
    model.adapters = {'method':'norms_only', 'settings':{}}
    return train_only(model, lambda n,p: 'norm' in n.lower())
""", regularizer = """
from fastformers.callback.regularize import Regularizer

class SmallLogits(Regularizer):
    "Keep the outputs small"
    calls = 0
    def penalty(self):
        self.calls += 1
        return 10*self.pred.float().pow(2).mean()
""", family = """
from torch import nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel
from fastformers.models.families import FamilyMeta, family_meta

class MineConfig(BertConfig): model_type = 'mine'
class MineModel(BertModel):
    "A BERT under a name of its own"
    config_class = MineConfig

AutoConfig.register('mine', MineConfig)
AutoModel.register(MineConfig, MineModel)
family_meta['mine'] = FamilyMeta(chain=('encoder.layer',), segments=True, bidirectional=True)
""", entry = """
from fastformers.compare.entries import entry
from fastformers.inference.baseline import TextBaseline

@entry('first words', 'linear')
def first_words(rows):
    "Fit a linear model on the first `rows.plan['seed']` words"
    return TextBaseline.fit([' '.join(o.split()[:rows.plan['seed']]) for o in rows.texts], rows.labels, rows.task)
""", attribution = """
from fastformers.interpret.attribution import attributions

@attributions.add
def length(predictor, text, at, words):
    "Weigh a word by its length"
    return words.word.str.len().to_numpy(float)
""")

@pytest.fixture(scope='module')
def mine(tmp_path_factory):
    "Each part as a module of a user"
    path = tmp_path_factory.mktemp('mine')
    for k,o in parts.items(): (path/f'my_{k}.py').write_text(o)
    tables = objectives,tasks,heads,pools,schedules,anneals,adapter_methods,family_meta,entries,attributions
    before = [dict(o.load() if hasattr(o, 'load') else o) for o in tables]
    sys.path.insert(0, str(path))
    yield {k:importlib.import_module(f'my_{k}') for k in parts}
    sys.path.remove(str(path))
    for o,old in zip(tables, before): o.clear(); o.update(old)

@pytest.fixture(scope='module')
def arch(mine, tmp_path_factory):
    "The directory of a network that was trained with an objective and a schedule that are found by their names"
    path = tmp_path_factory.mktemp('stages')/'lm'
    dls = lm_dls(tiny_df(), tiny_tok(), seq_len=32, device='cpu')
    lm_learner(dls, tiny_arch('bert', num_hidden_layers=2)).save_encoder(path)
    kwargs = dict(objective='first_token', schedule='bottom_first', anneal='constant', epochs=1, bs=16, seq_len=32, precision='fp32')
    stage = fine_tune_lm(tiny_df(), path, path.with_name('two'), **kwargs)
    assert isinstance(stage.learner.dls.train.after_batch.fs[-1], mine['objective'].FirstToken)
    assert stage.schedule.factors.tolist()==[[1,0,0,1],[1,1,1,1]] and all(o==o for o in stage.losses)
    return stage.path

def fitted(arch, **kwargs):
    stage = fine_tune_classifier(tiny_df(), arch, epochs=.5, bs=16, max_len=32, head_init='random', precision='fp32', **kwargs)
    assert all(o==o for o in stage.losses)
    return stage.learner

def test_an_objective_and_a_schedule_are_found_by_name(mine, arch): check_objective(mine['objective'].FirstToken)

def test_a_task(mine, arch):
    check_task(mine['task'].Stars)
    learn = fitted(arch, task='stars')
    assert set(learn.get_preds(with_decoded=True)[2].tolist())<={0,1,2}

def test_a_head_is_found_by_name_and_saved(mine, arch, tmp_path):
    learn = fitted(arch, head='GatedHead')
    assert isinstance(learn.model.head, mine['head'].GatedHead)
    text = tiny_df().text[0]
    got = from_hf(learn.to_hf(tmp_path/'o'), device='cpu').scores([text])[0]
    with learn.no_bar(): assert torch.allclose(got, learn.predict(text)[2], atol=1e-5)

def test_a_pooling(mine, arch): assert fitted(arch, pool='norm_pool').model.head.pool is mine['pooling'].norm_pool

def test_an_adapter(mine, arch):
    model = fitted(arch, adapters='norms_only').model
    assert {n.split('.')[-2] for n,p in model.body.named_parameters() if p.requires_grad}=={'LayerNorm'}

def test_a_regularizer(mine, arch):
    plain,learn = fitted(arch),fitted(arch, cbs=mine['regularizer'].SmallLogits())
    assert learn.small_logits.calls==2 # batches in half of an epoch
    assert any(not torch.equal(p, q) for p,q in zip(plain.model.parameters(), learn.model.parameters()))

def test_a_family(mine):
    config = mine['family'].MineConfig(vocab_size=1024, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    check_family(config)
    learn = quiet(classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=16, device='cpu'), config))
    learn.fit(1, 1e-3)
    assert all(o==o for o in learn.recorder.losses)

def test_an_entry_of_a_comparison(mine):
    df = tiny_df().drop(columns='is_valid')
    board = leaderboard(df, entries=['TF-IDF','first words'], seeds=(1,2), minutes=1, log=lambda o: None)
    assert board.done('first words') and board.score('first words')>0 and [*entries][-1]=='first words'
    with pytest.raises(ValueError, match="mine needs 'archs'.*did you mean arch"): entry('mine', ('archs',))(lambda rows: None)

def test_an_attribution(mine, arch):
    df,text = tiny_df(),'a wonderful film'
    words = TextBaseline.fit(df.text.tolist(), df.label.tolist())
    for predictor in (words, as_predictor(fitted(arch))): assert predictor.explain(text, method='length').words.weight.tolist()==[1,9,4]

def test_a_rule_for_a_setting(arch, monkeypatch):
    "One function that returns value and reason, for `plan` and for stages"
    monkeypatch.setattr('fastformers.learner.choose.choose_epochs', lambda *args: (.5, 'half is enough'))
    learn = quiet(classifier_learner(classifier_dls(tiny_df(), arch, bs=16, device='cpu'), arch, head_init='random'))
    assert learn.plan(head_init='random').settings['epochs']==(.5, 'half is enough')
    stage = fine_tune_classifier(tiny_df(), arch, bs=16, head_init='random', precision='fp32')
    assert stage.epochs==.5 and len(stage.losses)==2 and stage.plan['epochs']==.5

def test_a_recipe_takes_their_names_and_tells_wrong_ones(mine, tmp_path):
    sections = dict(lm=dict(objective='first_token', schedule='bottom_first'), classifier=dict(task='stars', head='GatedHead', pool='norm_pool', anneal='constant', adapters='norms_only'))
    recipe = Recipe().replace(**sections)
    (tmp_path/'mine.ini').write_text(recipe.to_ini())
    assert read_recipe(tmp_path/'mine.ini').classifier==recipe.classifier
    for section,o in sections.items():
        for k,v in o.items():
            with pytest.raises(ValueError, match=f"`{k}` '{v}s' is unknown; did you mean {v}"): Recipe().replace(**{section:{k:v+'s'}})

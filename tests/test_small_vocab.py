"While a classifier trains, the embeddings of its own tokens are parameters and the rest is not, and nothing else changes"
import copy, os, pickle, subprocess, sys
from functools import partial
from pathlib import Path
import pytest, torch
from fastai.basics import Adam, Callback, SGD, load_learner
from fastai.torch_core import set_seed
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.regularize import L2SP
from fastformers.callback.resume import Resume, read_checkpoint
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.interpret.attribution import integrated_gradients
from fastformers.interpret.forgetting import forgetting
from fastformers.learner import core, vocab
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.save import as_predictor
from fastformers.learner import train # `fit_plan`
from fastformers.models.adapters import add_adapters, load_adapters, save_adapters
from fastformers.models.vocab import EmbeddingRows, train_rows
from fastformers.papers.ewc import EWC, fisher_diagonal
from fastformers.papers.mt_dnn import AuxiliaryTasks
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

df,key = tiny_df(),'embeddings.word_embeddings.weight'
other = 'unseen words: zebra quartz fjord' # with tokens that no training text has

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    "A checkpoint with more tokens than the texts"
    d = tmp_path_factory.mktemp('arch')
    set_seed(1)
    AutoModel.from_config(tiny_arch('bert', num_hidden_layers=2, vocab_size=3000)).save_pretrained(d)
    tiny_tok().save_pretrained(d)
    return d

@pytest.fixture
def few(monkeypatch): monkeypatch.setattr(vocab, 'train_rows', partial(train_rows, least=0)) # of a tiny network

def make(arch, rows=True, bs=8, **kwargs):
    set_seed(0)
    with pytest.MonkeyPatch.context() as m:
        if not rows: m.setattr(core, 'train_own_rows', lambda learn: None)
        return classifier_learner(classifier_dls(df, tiny_tok(), bs=bs, device='cpu'), arch, **dict(head_init='random', precision='fp32')|kwargs)

def table(learn): return learn.model.body.get_input_embeddings()

def gap(a, b, but=()): # between the weights of two learners, without the rows `but`
    a,b = (o.model.state_dict() for o in (a,b))
    assert a.keys()==b.keys()
    keep = [i for i in range(3000) if i not in but]
    return max(float((v[keep]-b[k][keep] if key in k else v-b[k]).abs().max()) for k,v in a.items())

def one_fit(learn): learn.fit_one_cycle(2, 3e-3, wd=.1)
def stages(learn): learn.fit_schedule(gradual_unfreeze, 3e-3, epochs=4.5)
def by_hand(learn):
    learn.freeze_to(1); learn.fit(1, 3e-3)
    learn.unfreeze(); learn.fit(1, slice(1e-3,5e-3), wd=.1)

@pytest.mark.parametrize('fit', [one_fit, stages, by_hand])
@pytest.mark.parametrize('opt_func', [None, Adam, SGD])
def test_as_without(few, arch, fit, opt_func):
    how = dict(opt_func=opt_func) if opt_func else {}
    learns = [make(arch, o, **how) for o in (True,False)]
    for o in learns:
        set_seed(2)
        with o.no_logging(), o.no_bar(): fit(o)
    own,whole = map(table, learns)
    assert isinstance(own, EmbeddingRows) and type(whole) is nn.Embedding
    rest = sorted({*range(3000)}-{*own.used.tolist()})
    assert len(own.used)<len(rest) and own.rows.shape[0]==len(own.used)
    assert gap(*learns, but=rest)<1e-5
    before = load_file(arch/'model.safetensors')[key]
    assert torch.equal(own.weight[rest], before[rest]) and (own.weight!=before).any()
    moved = (own.weight!=before).any(1)
    assert own.padding_idx==0 and not own.rows[own.pad].any()          # no gradient
    assert moved.sum()>len(own.used)/2
    for a,b in zip(learns[0].recorder.losses, learns[1].recorder.losses): assert abs(a-b)<1e-5

@pytest.mark.parametrize('head', ['hf', None])
@pytest.mark.parametrize('family', ['bert', 'roberta', 'distilbert', 'electra', 'albert', 'gpt2', 'modernbert', 'deberta-v2', 'xlnet'])
def test_families(few, tmp_path, family, head):
    set_seed(1)
    hf = AutoModel.from_config(tiny_arch(family, vocab_size=3000))
    hf.save_pretrained(tmp_path)
    learns = []
    for rows in (True,False):
        set_seed(0)
        learns.append(of_family(tmp_path, family, rows, head))
        set_seed(2)
        with learns[-1].no_logging(), learns[-1].no_bar(): learns[-1].fit(1, 1e-3)
    assert isinstance(table(learns[0]), EmbeddingRows)
    a,b = (o.get_preds()[0] for o in learns)
    assert float((a-b).abs().max())<1e-5
    assert [len(o) for o in learns[0].opt.param_lists]==[len(o) for o in learns[1].opt.param_lists]

def of_family(arch, family, rows, head):
    with pytest.MonkeyPatch.context() as m:
        if not rows: m.setattr(core, 'train_own_rows', lambda learn: None)
        return classifier_learner(classifier_dls(df, tiny_tok(family), bs=8, device='cpu'), arch, head=head, head_init='random', precision='fp32')

def test_other_texts_are_read_with_the_rows_of_the_checkpoint(few, arch):
    learn = make(arch)
    ids = torch.arange(3000)[None]
    before = load_file(arch/'model.safetensors')[key]
    assert torch.equal(table(learn)(ids)[0], before)
    with learn.no_logging(), learn.no_bar(): learn.fit(1, 3e-3)
    assert torch.equal(table(learn)(ids)[0], table(learn).weight)
    assert not {*tiny_tok()(other).input_ids}<={*table(learn).used.tolist()}
    copies = [copy.deepcopy(learn.model), pickle.loads(pickle.dumps(learn.model))]
    x = learn.dls.test_dl([other]).one_batch()[0]
    with torch.no_grad(): a,*rest = (m.eval()(x) for m in (learn.model, *copies))
    for o in rest: assert torch.equal(a, o)
    learn.dls = classifier_dls(df.assign(text=df.text+' '+other), tiny_tok(), bs=8, device='cpu')
    with learn.no_logging(), learn.no_bar(): learn.fit(1, 3e-3)        # reads new rows, which stay
    rest = sorted({*range(3000)}-{*table(learn).used.tolist()})
    assert torch.equal(table(learn).weight[rest], before[rest])

def test_a_plan_trains_the_rows_of_its_data(few, arch):
    "Names of classes become training rows after the learner was made"
    rows = df[:18].assign(label=['zebra','quartz fjord']*9)
    learn = classifier_learner(classifier_dls(rows, tiny_tok(), bs=8, device='cpu'), arch, precision='fp32')
    words = tiny_tok()('zebra quartz fjord').input_ids
    assert not {*words}<={*table(learn).used.tolist()}
    plan = learn.plan(names=['zebra','quartz fjord'], epochs=1.)
    with learn.no_logging(), learn.no_bar(): learn.fit_plan(plan)
    assert {*words}<={*table(learn).used.tolist()} and table(learn).rows in learn.opt.state

def test_files_are_whole(few, arch, tmp_path):
    learn = make(arch)
    with learn.no_logging(), learn.no_bar(): learn.fit(1, 3e-3)
    emb,before = table(learn),load_file(arch/'model.safetensors')[key]
    rest = sorted({*range(3000)}-{*emb.used.tolist()})
    preds = learn.get_preds()[0]
    for name in ('save_encoder','to_hf'):
        d = getattr(learn, name)(tmp_path/name)
        hf = AutoModel.from_pretrained(d)
        w = hf.get_input_embeddings().weight.detach()
        assert torch.equal(w[rest], before[rest]) and torch.equal(w[emb.used], emb.rows.detach())
        p,q = from_hf(d, precision='fp32'),as_predictor(learn)
        texts = [*df.text[:5], other]
        assert torch.equal(torch.as_tensor(p.scores(texts)), torch.as_tensor(q.scores(texts)))
    for rows in (True,False):                                          # a learner of the same data, with and without
        again = make(arch, rows)
        learn.save(tmp_path/'learn'); again.load(tmp_path/'learn')
        assert torch.equal(again.get_preds()[0], preds)
        with again.no_logging(), again.no_bar(): again.fit(1, 1e-4)     # Adam's averages of other rows begin anew
    again = make(arch).load_encoder(tmp_path/'to_hf')
    assert torch.equal(table(again).weight, emb.weight)
    again.model.load_state_dict({k:v for k,v in learn.model.state_dict().items() if key not in k}, strict=False)
    with pytest.raises(RuntimeError, match=r'weight is \(7, 32\)'): again.model.load_state_dict(learn.model.state_dict()|{f'hf.{key}':torch.zeros(7,32)})
    with pytest.raises(RuntimeError, match='Missing'): again.model.load_state_dict({k:v for k,v in learn.model.state_dict().items() if key not in k})
    learn.export(tmp_path/'all.pkl')
    assert load_learner(tmp_path/'all.pkl').predict(other)[0]==learn.predict(other)[0]

def test_resume(few, arch, tmp_path):
    "A fit that is stopped and goes on ends as one that was not"
    def run(stop=None, path=tmp_path/'a'):
        learn = make(arch, cbs=Resume(path, every=2, minutes=None))
        class Stop(Callback):
            order = 2000
            def after_batch(self):
                if self.training and self.train_iter==stop: raise KeyboardInterrupt
        with learn.no_logging(), learn.no_bar():
            try: learn.fit_one_cycle(2, 3e-3, cbs=Stop())
            except KeyboardInterrupt: assert stop
        return learn
    whole = run(path=tmp_path/'b')
    run(stop=7)
    tensors = read_checkpoint(next(o.parent for o in sorted((tmp_path/'a').rglob('state.json'))))[1]
    assert tensors[f'buffer hf.{key.replace("weight","whole")}'].shape==(3000,32)
    assert gap(run(), whole)==0

def test_left_whole_where_others_need_all_rows(few, arch, tmp_path):
    "An LM head, other tasks on the same body, regularizers, random weights, few rows to gain"
    plain = [make(arch, cbs=AuxiliaryLM(arch=tiny_arch('bert', num_hidden_layers=2, vocab_size=3000))), make(arch, cbs=L2SP()),
             make(arch, cbs=AuxiliaryTasks({'a':classifier_dls(df, tiny_tok(), bs=8, device='cpu')})), make(arch, pretrained=False)]
    plain.append(lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=8, device='cpu'), tiny_arch('bert', vocab_size=3000)))
    for o in plain: assert type(table(o)) is nn.Embedding
    with pytest.MonkeyPatch.context() as m:
        m.setattr(vocab, 'train_rows', train_rows)
        assert type(table(make(arch))) is nn.Embedding

def test_readers_of_weights(few, arch, tmp_path):
    "Adapters, EWC, attributions and `forgetting` see the whole embedding"
    learn = make(arch)
    with learn.no_logging(), learn.no_bar(): learn.fit(1, 3e-3)
    p = as_predictor(learn)
    text = df.text[0]
    assert len(learn.explain(text, method='integrated_gradients').words)
    lm = lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=8, device='cpu'), tiny_arch('bert', num_hidden_layers=2, vocab_size=3000))
    lm.save_encoder(tmp_path/'lm')
    of_lm = make(tmp_path/'lm')
    assert isinstance(table(of_lm), EmbeddingRows)
    rows = forgetting({'lm':lm, 'classifier':of_lm}, [*df.text[:9]])
    assert abs(rows['change'].iloc[1])<1e-6 and isinstance(table(of_lm), EmbeddingRows)
    ewc = [make(tmp_path/'lm', o) for o in (True,False)]
    fisher = fisher_diagonal(lm, n=10)
    for o in ewc:
        set_seed(2)
        with o.no_logging(), o.no_bar(): o.fit(1, 3e-3, wd=0., cbs=EWC(fisher, 100.))
    assert gap(*ewc, but={*range(3000)}-{*table(ewc[0]).used.tolist()})<1e-5
    adapted = make(arch)
    add_adapters(adapted.model, 4)
    with adapted.no_logging(), adapted.no_bar(): adapted.fit(1, 3e-3)
    save_adapters(adapted.model, tmp_path/'a.safetensors')
    assert not any('word_embeddings' in k for k in load_file(tmp_path/'a.safetensors'))
    plain = make(arch, False)
    with pytest.MonkeyPatch.context() as m:
        m.setattr('fastformers.models.adapters._log.warning', pytest.fail)
        load_adapters(plain.model, tmp_path/'a.safetensors')
    assert torch.equal(plain.get_preds()[0], adapted.get_preds()[0])

driver = '''
import os, sys
from functools import partial
import torch, torch.distributed as dist
from fastai.torch_core import set_seed
from fastformers.data.block import classifier_dls
from fastformers.learner import core, vocab
from fastformers.models.vocab import EmbeddingRows, train_rows
from fastformers.testing import tiny_df, tiny_tok
vocab.train_rows,(root,arch) = partial(train_rows, least=0),sys.argv[1:]
def child(rank, world):
    if world>1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group('gloo', init_method=f'file://{root}/store', rank=rank, world_size=world)
    set_seed(0)
    learn = core.classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), arch, drop_mult=0., head_init='random', precision='fp32')
    assert isinstance(learn.model.body.get_input_embeddings(), EmbeddingRows)
    with learn.no_bar(): learn.fit(2, 1e-3)
    torch.save(learn.model.state_dict(), f'{root}/{world}-{rank}.pt')
for world in (1,2):
    pids = []
    for rank in range(world):
        if pid := os.fork(): pids.append(pid)
        else:
            try: child(rank, world); os._exit(0)
            finally: os._exit(1)
    for o in pids: assert not os.waitpid(o, 0)[1]
'''

@pytest.mark.skipif(not hasattr(os, 'fork') or not torch.distributed.is_available(), reason='two processes talk by gloo')
def test_two_processes(arch, tmp_path):
    env = {k:v for k,v in os.environ.items() if k not in ('RANK','WORLD_SIZE')} | dict(OMP_NUM_THREADS='1', FASTFORMERS_PRECISION='fp32')
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', driver, tmp_path, arch], cwd=Path(__file__).parent.parent, capture_output=True, text=True, env=env)
    assert res.returncode==0, res.stderr[-3000:]
    one,a,b = (torch.load(tmp_path/f'{o}.pt') for o in ('1-0','2-0','2-1'))
    for k,v in one.items(): assert torch.equal(a[k], b[k]) and float((v-a[k]).abs().max())<1e-5

"""Everything on a pretended GPU: each operation has its tensors on one device and none is of float64, data and network stay together, and a run changes its device

A scenario is a function with an argument for what it needs; `make` names it. All run in one process and share imports and small trained networks."""
import copy, os, pytest, torch, torch.distributed as dist
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from fastai.basics import Callback, OptimWrapper, accuracy
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.training import GradientClip
from fastai.learner import load_learner
from fastai.optimizer import Adam
from fastai.torch_core import set_seed
import fastformers.data.show, fastformers.learner.calibration, fastformers.learner.generation, fastformers.learner.spread, fastformers.learner.probe
import fastformers.interpret.attribution
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.contrastive import Contrastive
from fastformers.callback.distil import Distil
from fastformers.callback.keep_vectors import KeepVectors
from fastformers.callback.regularize import L2SP, RDrop
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import chain_thaw, gradual_unfreeze
from fastformers.callback.windows import SampleWindow
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.data.labels import class_weights
from fastformers.inference.lm_predictor import lm_from_hf
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.interpret.attention import attention_maps, head_importance, head_stats
from fastformers.interpret.checks import checks, identity_gaps
from fastformers.interpret.forgetting import forgetting
from fastformers.interpret.probes import layer_probes
from fastformers.interpret.slices import fixed_broken, label_issues, slices
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.save import as_predictor
from fastformers.lens.heads import head_curve
from fastformers.lens.maps import text_map, word_map
from fastformers.lens.probes import token_probes
from fastformers.models.adapters import add_adapters, add_lora, bitfit, remove_adapters
from fastformers.papers.lstm_head import LSTMHead
from fastformers.objectives.core import objectives
from fastformers.papers.ewc import EWC, fisher_diagonal
from fastformers.papers.gpt import gpt_learner
from fastformers.papers.mixout import Mixout
from fastformers.papers.mt_dnn import AuxiliaryTasks
from fastformers.papers.transfertransfo import Dialogue, DialogueTokenizer
from fastformers.papers.uda import Consistency
from fastformers.tasks.core import tasks
from fastformers.testing import tiny_arch, tiny_choice, tiny_df, tiny_pairs, tiny_spans, tiny_tags, tiny_tok
from fastformers.text.tokenizer import extend_vocab
from fastformers.ulmfit.recipe import Recipe
from fastformers.ulmfit.run import ulmfit
from fastformers.learner.evaluate import evaluate
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm
from pretended_gpu import DeviceError, copied, cpu, cuda, device_of, on_gpu, pretended_gpu

pytestmark = pytest.mark.exact
df = tiny_df()
some = df[:20]
texts = [*df.text[:5]]
numbers = some.assign(label=some.text.map(len)*100.+90_000)

@pytest.fixture(scope='module')
def here(tmp_path_factory): return tmp_path_factory.mktemp('devices')

@pytest.fixture(scope='module', autouse=True)
def gpu():
    with pretended_gpu(): yield

# ---- small networks

def bert(**kwargs): return tiny_arch('bert', **dict(num_hidden_layers=1) | kwargs)
def lm(family='bert', obj=None, arch=None, device=None, **kwargs):
    set_seed(0)
    tok = tiny_tok(family)
    dls = lm_dls(some, tok, obj and obj(tok), seq_len=32, bs=16, device=device)
    return lm_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), **kwargs)
def clas(data=some, arch=None, family='bert', device=None, bs=12, dls=None, **kwargs):
    set_seed(0)
    dls = classifier_dls(data, tiny_tok(family), bs=bs, device=device, **dls or {})
    return classifier_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), **kwargs)
def fit(learn, n=1, verb='fit', **kwargs):
    with learn.no_bar(), learn.no_logging(): getattr(learn, verb)(n, 1e-3, **kwargs)
    assert all(map(torch.isfinite, learn.recorder.losses)) and together(learn)
    return learn
def together(learn, device=cuda):
    "Are all weights and the batches on `device`?"
    dls,model = learn.dls,learn.model
    return {device}=={p.device for p in (*model.parameters(), *model.buffers())}=={dls.one_batch()[0].device} and torch.device(dls.device).type==device.type

@cache
def made(root, name):
    "Directories and learners that several scenarios read"
    if name=='lm': return fit(lm()).save_encoder(root/'lm')
    if name=='gpt': return fit(lm('gpt2')).save_encoder(root/'gpt')
    if name=='clas': return fit(clas(arch=made(root, 'lm')))
    if name=='dir': return made(root, 'clas').to_hf(root/'clas')
    if name=='regression': return fit(clas(numbers, made(root, 'lm'))).to_hf(root/'regression')

scenarios = {}
def scenario(f, key=None, /, **kwargs):
    scenarios[key or f.__name__] = partial(f, **kwargs)
    return f

# ---- objectives

own = {k:o for k,o in objectives.load().items() if o.__module__.startswith('fastformers.')}
def an_objective(make, name):
    family = dict(rtd='electra', plm='xlnet', hybrid='llama', clm='gpt2').get(name, 'bert')
    tok = tiny_tok(family)
    if name=='hybrid': tok = extend_vocab(tok, mask_token='<mask>')
    obj = own[name](tok)
    packing = 'segment-pair' if name in ('nsp','sop','joint') else 'doc-sentences'
    learn = fit(lm_learner(lm_dls(some, tok, obj, seq_len=32, bs=16, packing=packing), tiny_arch(family, num_hidden_layers=1)))
    with learn.no_bar(): learn.show_results(max_n=2)
    evaluate(learn)
for o in own:
    if o!='dialogue': scenario(an_objective, f'objective {o}', name=o)

# ---- tasks and heads

tables = dict(single=(some, {}), multi=(some.assign(label=some.label.map(lambda o: [o, o[:3]])), {}), regression=(numbers, {}), tags=(tiny_tags(), {}),
    spans=(tiny_spans(), dict(text_col=['question','context'], label_col=['answer_text','answer_start'])), choice=(tiny_choice(), dict(text_col=['text','candidates'])),
    pairs=(tiny_pairs(), dict(text_col=('text_a','text_b'))), siamese=(tiny_pairs(), dict(text_col=('text_a','text_b'), pairing='siamese')),
    windows=(some, dict(max_len=12, windows=3, overlap=2)), windows_of_tags=(tiny_tags(), dict(max_len=8, windows=3, overlap=1)))
def a_task(make, name):
    data,kw = tables[name]
    learn = fit(clas(data, bert(), dls=dict(kw, task=name if name in tasks.load() else None)))
    with learn.no_bar(): learn.get_preds()
    with learn.no_bar(): learn.show_results(max_n=2)
    evaluate(learn)
    path = learn.to_hf(make.root/f'task {name}')
    items = learn.model.task.texts(data, kw.get('text_col','text'))[:3]
    predictor = from_hf(path)
    assert predictor.device.type=='cuda' and len(predictor(items))==len(items)
    learn.predict(items[0])
for o in tables: scenario(a_task, f'task {o}', name=o)
for k,o in dict(lstm=dict(head=LSTMHead), linear=dict(head='linear'), hf=dict(head='hf'),
                mix=dict(hidden_states='mix'), layers=dict(hidden_states=[0,-1])).items():
    scenario(lambda make, kw: fit(clas(**kw)).predict(texts[0]), f'head {k}', kw=o)
for k in ('albert','deberta-v2','modernbert','xlnet','gpt2','t5'): scenario(lambda make, family: fit(clas(family=family)), f'family {k}', family=k)

# ---- adapters

def adapters(make, change, undo):
    learn = clas(arch=make('lm'))
    change(learn.model)
    learn.opt = None
    fit(learn)
    undo(learn.model)
    assert together(learn)
for k,a,b in (('bottlenecks',add_adapters,remove_adapters), ('lora',add_lora,remove_adapters), ('bitfit',bitfit,remove_adapters)): scenario(adapters, k, change=a, undo=b)

# ---- callbacks

regularizers = dict(
    contrastive=lambda m: Contrastive(), l2sp=lambda m: L2SP(), rdrop=lambda m: RDrop(), auxiliary_lm=lambda m: AuxiliaryLM(),
    distil_of_several=lambda m: Distil(Ensemble([m('dir'), m('dir')])),
    accumulation=lambda m: TokenAccumulation(n_acc=16), tokens=lambda m: TokenAccumulation(n_tokens=300), clip=lambda m: GradientClip(.1),
    mixout=lambda m: Mixout(), ewc=lambda m: EWC(fisher_diagonal(lm(arch=m('lm')), n=4), 10.), uda_filled=lambda m: Consistency(texts*2, confidence=.1, fill=m('lm')), uda_changed=lambda m: Consistency(texts*2, confidence=.1, which='typo'))
def beside(make, name): fit(clas(arch=make('lm'), cbs=regularizers[name](make)))
for o in regularizers: scenario(beside, f'beside {o}', name=o)

@scenario
def keep_vectors(make): fit(lm(arch=make('lm'), cbs=KeepVectors()))
@scenario
def sampled_windows(make): fit(clas(dls=dict(max_len=12, windows=3, overlap=2), cbs=SampleWindow()))
@scenario
def a_regression_beside_other_tasks_has_its_scale(make):
    others = dict(length=classifier_dls(numbers, tiny_tok(), bs=8), pairs=classifier_dls(tiny_pairs(), tiny_tok(), ('text_a','text_b'), bs=8),
                  choice=classifier_dls(tiny_choice(), tiny_tok(), ['text','candidates'], bs=4, task='choice'), on_cpu=classifier_dls(numbers, tiny_tok(), bs=8, device='cpu'))
    learn = fit(clas(cbs=AuxiliaryTasks(others, until=1.)), 3)
    x,y = others['length'].valid.one_batch()
    with torch.no_grad(): pred = learn.model.others['length'].eval()(x)
    assert (pred.flatten().cpu()-y.cpu()).abs().mean()<2*numbers.label.std()
@scenario
def bfloat16(make): fit(clas(precision='bf16')) # scaled float16 needs float64 in torch itself
@scenario
def weights_of_classes(make):
    from fastai.losses import CrossEntropyLossFlat
    dls = classifier_dls(some, tiny_tok(), bs=8)
    fit(classifier_learner(dls, bert(), loss_func=CrossEntropyLossFlat(weight=class_weights(dls))))

# ---- verbs of the learner

@scenario
def the_probe(make):
    learn = clas(arch=make('lm')).fit_probe()
    learn.cross_validate_probe(folds=2)
    assert together(learn)
@scenario
def labels_spread(make): clas(arch=make('lm')).spread_labels(texts)
@scenario
def calibration(make):
    learn = copy.deepcopy(make('clas'))
    learn.calibrate()
    learn.predict(texts[0])
@scenario
def thresholds(make):
    learn = fit(clas(tables['multi'][0], make('lm')))
    learn.tune_thresholds()
    learn.predict(texts[0])
    from_hf(learn.to_hf(make.root/'thresholds'))(texts)
for k in (gradual_unfreeze, chain_thaw): scenario(lambda make, f: fit(clas(), f, 'fit_schedule', epochs=3), k.__name__, f=k)
@scenario
def one_cycle_and_lr_find(make):
    learn = clas()
    with learn.no_bar(), learn.no_logging(): learn.lr_find(num_it=5, show_plot=False)
    fit(learn, verb='fit_one_cycle')
@scenario
def frozen_and_back(make):
    learn = clas(arch=make('lm'))
    learn.freeze(); fit(learn)
    learn.unfreeze(); fit(learn)
@scenario
def another_encoder(make): fit(clas(arch=make('lm')).load_encoder(make('lm')))
@scenario
def an_export_opens_on_the_cpu(make):
    learn = fit(clas(cbs=[]))
    learn.export(make.root/'export.pkl')
    other = load_learner(make.root/'export.pkl', cpu=True)
    as_predictor(other)(texts)
    assert {p.device for p in other.model.parameters()}=={cpu} and other.predict(texts[0])
@scenario
def words_of_a_language_model(make):
    learn = fit(lm())
    learn.fill_mask('a [MASK] film')
    learn.score(texts)
@scenario
def a_generator(make):
    learn = fit(lm('gpt2'))
    learn.generate('a good', max_new_tokens=3); learn.score(texts)
    other = lm_from_hf(make('gpt'))
    other.generate(texts[:2], max_new_tokens=3); other.score(texts, by_token=True)
@scenario
def gpt(make): fit(gpt_learner(classifier_dls(some, tiny_tok('gpt2'), bs=8), make('gpt')))

# ---- stages

how = dict(epochs=1., bs=16, lr=1e-3)
@scenario
def three_stages(make):
    a = pretrain_lm(some, make.root/'general', vocab_sz=400, size=1, seq_len=32, bs=8, epochs=1.)
    b = fine_tune_lm(some, a.path, make.root/'target', seq_len=32, **how)
    c = fine_tune_classifier(some, b.path, make.root/'classifier', max_len=24, **how)
    assert all(next(o.learner.model.parameters()).is_cuda for o in (a,b,c))
@scenario
def a_whole_run(make):
    recipe = Recipe().replace(model=dict(arch=str(make('lm'))), lm=how | dict(seq_len=32), classifier=how | dict(max_len=24, refit=False))
    ulmfit(some, test=df[30:40], recipe=recipe)
for k,kw in dict(contrastive=dict(head_init='contrastive'), refit=dict(refit=True), adapters=dict(adapters='bottleneck'),
                 probe_alone=dict(epochs=0.), unlabelled=dict(unlabelled=[*df.text[1::2]])).items():
    def classifier_stage(make, kw): fine_tune_classifier(some, make('lm'), **dict(how, max_len=24, refit=False) | kw)
    scenario(classifier_stage, f'stage {k}', kw=kw)
@scenario
def a_stage_of_numbers(make): fine_tune_classifier(numbers, make('lm'), refit=False, **how)

# ---- predictors

@scenario
def predictors(make):
    o = from_hf(make('dir'))
    assert o.vectors(texts).device==cpu and o.scores(texts).device==cpu
    o(texts, top_k=2); o.predict_frame(df[:4])
    Ensemble([make('dir'), o])(texts)
    copy.deepcopy(o)(texts)
    from_hf(make('lm')).vectors(texts)
    from_hf(make('regression'))(texts)
@scenario
def classes_come_and_go(make):
    for f in (lambda o: o.add_class('new', ['zig zag']*6), lambda o: o.remove_class('positive'), lambda o: o.merge_classes(['positive','negative'], 'clear')):
        o = f(from_hf(make('dir')))
        assert o(texts) and from_hf(o.save(make.root/'classes'))(texts)
@scenario
def explanations(make):
    for o in (make('clas'), from_hf(make('dir'))):
        for method in ('erasure','integrated_gradients','gradient_x_input'): o.explain(texts[0], method=method)
@scenario
def attention(make):
    learn = make('clas')
    attention_maps(learn, texts[0]); head_stats(learn, texts)
    heads = head_importance(learn)
    head_curve(learn, some[:8], heads, kept=(.5,), draws=1)
@scenario
def networks_compared(make):
    text_map(make('clas'), texts); word_map(make('lm'), ['a film','the film','film'], 'film')
    forgetting(make('clas'), texts)
@scenario
def layers_probed(make): layer_probes(make('lm'), some); token_probes(make('lm'), tiny_tags())
@scenario
def errors_found(make):
    learn = make('clas')
    slices(learn, some, least=2); fixed_broken(learn, from_hf(make('dir')), some); label_issues(from_hf(make('lm')), some, folds=2)
    checks(learn, some[:6]); identity_gaps(learn)

# ---- data and network on the CPU, beside a GPU

@scenario
def a_learner_on_the_cpu_stays_there(make):
    learn = clas(arch=make('lm'), device='cpu')
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    as_predictor(learn)(texts)
    learn.explain(texts[0]); slices(learn, some, least=2); text_map(learn, texts); attention_maps(learn, texts[0]); head_importance(learn)
    learn.predict(texts[0]); learn.to_hf(make.root/'stays')
    assert together(learn, cpu)
@scenario
def a_teacher_stays_where_it_was_opened(make):
    teacher = from_hf(make('dir'), device='cpu')
    fit(clas(arch=make('lm'), cbs=Distil(teacher)))
    assert {p.device for p in teacher.model.parameters()}=={cpu} and teacher(texts)
    learn = clas(arch=make('lm'), device='cpu', cbs=Distil(other := from_hf(make('dir'))))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert other(texts) and together(learn, cpu)

# ---- a run that changes its device

class Stop(Callback):
    order = 2000
    def after_batch(self):
        if self.training and self.train_iter==4: raise KeyboardInterrupt

opts = dict(fused=None, fastai=Adam, torch=partial(OptimWrapper, opt=torch.optim.AdamW), torch_fused=partial(OptimWrapper, opt=torch.optim.AdamW, fused=True))
def a_run_goes_on(make, start, then, opt='fused', precision='fp32'):
    at = make.root/f'{start} {then} {opt} {precision}'
    kw = dict(opt_func=opts[opt]) if opts[opt] else {}
    def run(device, *cbs):
        learn = clas(device=device, bs=8, cbs=[Resume(at, every=2), *cbs], precision=precision, **kw)
        with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(2, 1e-3)
        return learn
    with pytest.raises(KeyboardInterrupt): run(start, Stop())
    learn = run(then)
    state = learn.opt.opt.state if hasattr(learn.opt, 'opt') else learn.opt.state
    for p,o in state.items():
        for k,v in o.items():
            assert not isinstance(v, torch.Tensor) or v.device==p.device or v.ndim==0 and 'fused' not in opt, k
    assert together(learn, torch.device(then) if then=='cpu' else cuda) and len(learn.recorder.losses)==2*len(learn.dls.train)
for a,b,which in (('cpu','cuda',opts), ('cuda','cpu',opts), ('cuda','cuda',['fused'])):
    for o in which: scenario(a_run_goes_on, f'{a} to {b}, {o}', start=a, then=b, opt=o)
for a,b in (('cpu','cuda'), ('cuda','cpu')):
    for o in ('bf16','auto'): scenario(a_run_goes_on, f'{a} to {b}, {o}', start=a, then=b, precision=o)

@pytest.mark.parametrize('name', scenarios)
def test_scenario(name, here):
    def make(o): return made(here, o)
    make.root = here
    scenarios[name](make)

def test_there_are_seventy(): assert len(scenarios)>=70

# ---- the pretence itself, and processes

def test_the_gpu_refuses_what_a_gpu_refuses():
    a = torch.ones(3, device='cuda')
    assert a.is_cuda and (a+1).device==cuda and a.cpu().device==cpu and (a+torch.tensor(1.)).is_cuda and a[torch.tensor([0])].is_cuda
    for f in (lambda: a+torch.ones(3), lambda: a.numpy(), lambda: torch.ones(3)[torch.zeros(1, dtype=torch.long, device='cuda')], lambda: torch.cat([a, torch.ones(1)]),
              lambda: a.double(), lambda: a.to(torch.float64), lambda: torch.ones(2, dtype=torch.float64).cuda(), lambda: torch.ones(2, dtype=torch.float64, device='cuda')):
        with pytest.raises(DeviceError): f()
    assert a.cpu().double().dtype==torch.float64 and a.to('cpu', torch.float64).device==cpu

class Joined(Exception): pass
@pytest.mark.parametrize('door', ['lm','classifier','stage','lm stage'])
def test_a_process_has_its_gpu_before_anything_is_moved(door, here, monkeypatch):
    "`torchrun` with several GPUs: all networks went to the first"
    monkeypatch.setenv('WORLD_SIZE', '2'); monkeypatch.setenv('RANK', '1'); monkeypatch.setenv('LOCAL_RANK', '1')
    events = []
    def join(*args, **kwargs): raise Joined
    monkeypatch.setattr(dist, 'init_process_group', join)
    monkeypatch.setattr(torch.cuda, 'set_device', lambda o: events.append(o))
    monkeypatch.setattr(torch.nn.Module, 'to', lambda o, *args, **kwargs: events.append('moved') or o)
    doors = {'lm':lm, 'classifier':clas, 'stage':lambda: fine_tune_classifier(some, bert(), tok=tiny_tok()), 'lm stage':lambda: fine_tune_lm(some, bert(), tok=tiny_tok())}
    with pytest.raises(Joined): doors[door]()
    assert events==[1]

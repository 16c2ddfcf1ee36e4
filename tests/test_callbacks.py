"Every callback of fastai at every door that evaluates or trains: none draws, writes, tracks or stops outside a fit"
import importlib, logging, math, pkgutil, sys
from unittest.mock import MagicMock
import numpy as np, pandas as pd, pytest, torch
import fastai.callback, fastai.callback.schedule
from fastai.basics import Callback, FetchPredsCallback, GatherPredsCallback, Recorder, TrainEvalCallback, set_seed
from fastai.callback.fp16 import MixedPrecision, ModelToHalf, NonNativeMixedPrecision
from fastai.callback.hook import HookCallback
from fastai.callback.mixup import CutMix, MixHandler, MixUp
from fastai.callback.progress import CSVLogger, ProgressCallback, ShowGraphCallback
from fastai.callback.rnn import ModelResetter, RNNCallback, RNNRegularizer
from fastai.callback.schedule import LRFinder, ParamScheduler, SchedCos
from fastai.learner import load_learner
from fastai.callback.tracker import EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback, TrackerCallback
from fastformers.callback.progress import terminal_progress
from fastformers.callback.schedule import full_tune
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.interpret.decisions import expected_calibration_error
from fastformers.learner.core import classifier_learner, lm_learner
import fastformers.learner.calibration, fastformers.learner.spread
from fastformers.learner.evaluate import reports
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.learner.evaluate import class_scores, evaluate
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

class Own(TrackerCallback):
    "A tracker of a user, which writes down what it saw"
    order,seen = 64,0
    def after_epoch(self):
        super().after_epoch()
        type(self).seen += 1

class Inside(Callback):
    "Raise an error in each event outside a fit"
    def _check(self): assert not self.learn.lock.locked() and not hasattr(self, 'gather_preds'), 'called outside a fit'
    before_fit = before_epoch = before_train = after_train = after_batch = after_validate = after_epoch = after_fit = _check

own = dict(ParamScheduler=lambda: ParamScheduler({'mom':SchedCos(.9, .8)}), SaveModelCallback=lambda: SaveModelCallback(every_epoch=True),
           EarlyStoppingCallback=lambda: EarlyStoppingCallback('accuracy', patience=9), ReduceLROnPlateau=lambda: ReduceLROnPlateau('accuracy', patience=9),
           TrackerCallback=lambda: TrackerCallback('accuracy'), FetchPredsCallback=lambda: FetchPredsCallback(cbs=[]),
           TensorBoardCallback=lambda: cbs_of('tensorboard').TensorBoardCallback(trace_model=False, log_preds=False))
def cbs_of(name): return importlib.import_module(f'fastai.callback.{name}')
# for images, recurrent networks or a GPU, or fastai's own in one of its verbs
other = (GatherPredsCallback,LRFinder,MixHandler,MixUp,CutMix,RNNCallback,RNNRegularizer,ModelResetter,ModelToHalf,NonNativeMixedPrecision,
         MixedPrecision,TrainEvalCallback,HookCallback,Recorder,ProgressCallback)

def classes():
    "The callbacks of fastai whose module can be imported"
    res = {}
    for o in pkgutil.iter_modules(fastai.callback.__path__):
        try: mod = cbs_of(o.name)
        except Exception: continue # of a service that is not installed
        res.update({k:v for k,v in vars(mod).items() if isinstance(v, type) and issubclass(v, Callback) and v.__module__.startswith('fastai.callback.')})
    return {k:own.get(k, v) for k,v in res.items() if v not in other and k not in ('ChannelsLast','TensorBoardBaseCallback','TensorBoardProjectorCallback')}
cbs = {**classes(), 'best model':SaveModelCallback, 'early at once':lambda: EarlyStoppingCallback('train_loss', comp=np.less, min_delta=99),
       'a user\'s tracker':lambda: Own('accuracy'), 'inside':Inside}
every = pytest.mark.parametrize('name', cbs)

@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch): monkeypatch.chdir(tmp_path)

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    "A directory of a tiny BERT"
    path = tmp_path_factory.mktemp('arch')
    lm_learner(lm_dls(tiny_df(), tiny_tok(), bs=8), tiny_arch('bert')).save_encoder(path/'bert')
    return path/'bert'

@pytest.fixture(scope='module')
def two(): return tiny_df()[tiny_df().label!='neutral'].reset_index(drop=True)

def state(learn, path):
    "What an evaluation may not change"
    rec = learn.recorder
    files = {str(o):o.read_bytes() for o in path.rglob('*') if o.is_file() and 'out' not in o.parts}
    return dict(rec={k:[*map(str, v)] for k,v in vars(rec).items() if k in ('lrs','losses','iters','values','metric_names')}, smooth=rec.smooth_loss.count,
                files=files, cbs=[*learn.cbs], learns=[o.learn is learn for o in learn.cbs], logger=learn.logger,
                counters=[learn.epoch, learn.train_iter, learn.pct_train, learn.n_epoch], seen=Own.seen,
                best=[vars(o).get('best') for o in learn.cbs], passes=learn.dls.train.passes, locked=learn.lock.locked())

doors = dict(to_hf=lambda o: o.to_hf('out/a'), save_encoder=lambda o: o.save_encoder('out/b'), evaluate=evaluate, calibrate=lambda o: o.calibrate(),
             tune_thresholds=lambda o: o.tune_thresholds(), class_scores=class_scores, error=expected_calibration_error,
             spread=lambda o: o.spread_labels(['good','bad','what is it']), lr_find=lambda o: o.lr_find(num_it=8, show_plot=False))

@every
def test_an_evaluation_leaves_no_trace(name, two, tmp_path, capsys):
    learn = classifier_learner(classifier_dls(two, tiny_tok(), bs=8), tiny_arch('bert'), cbs=cbs[name]())
    learn.fit(1, 1e-3)
    for door,f in doors.items():
        if (door,name)==('lr_find','ShortEpochCallback'): continue # too few losses for fastai's rule
        before = state(learn, tmp_path)
        capsys.readouterr()
        for _ in range(2): f(learn) # the second waited for ever
        after = state(learn, tmp_path)
        if door=='lr_find': # its losses are what it is asked for
            for o in (before,after): del o['rec'],o['smooth'],o['counters']
            assert not (tmp_path/'history.csv').exists() or after['files']==before['files']
        else: assert capsys.readouterr().out==''
        assert after==before, door
    learn.fit(1, 1e-3)
    assert from_hf('out/a')(['good'])

@every
@pytest.mark.parametrize('how', [{}, dict(refit=True, calibrate=True)], ids=str)
def test_a_stage_takes_it(name, how, arch, two):
    cb = cbs[name]()
    stage = fine_tune_classifier(two, arch, 'out', cbs=cb, epochs=2, bs=8, test=two[:6], **how)
    assert math.isfinite(stage.metrics['loss']) and cb in stage.learner.cbs and cb.learn is stage.learner
    stage.learner.to_hf('again')
    evaluate(stage.learner)

@pytest.mark.parametrize('name', ['CSVLogger','EarlyStoppingCallback','best model','ShowGraphCallback','GradientClip','inside'])
def test_unlabelled_texts_and_a_language_model_take_it(name, arch, two):
    texts = [f'{t} {w}' for t in two.text for w in ('now','then')]
    stage = fine_tune_classifier(two, arch, 'out', unlabelled=texts, cbs=cbs[name](), epochs=1, bs=8, refit=True)
    assert math.isfinite(stage.metrics['loss'])
    stage = fine_tune_lm(two, arch, 'lm', cbs=cbs[name](), epochs=1, bs=4, seq_len=32)
    assert math.isfinite(stage.metrics['loss'])

# ---- what the user of a callback expects

def test_history_of_a_stage_is_that_of_its_training(arch, two):
    logger = CSVLogger()
    stage = fine_tune_classifier(two, arch, 'out', cbs=logger, epochs=3, bs=8, head_init='probe', refit=True, calibrate=True, test=two[:6])
    log = logger.read_log()
    assert len(log)==3 and np.allclose(log.valid_loss, stage.curve.valid_loss) and np.allclose(log.accuracy, stage.curve.accuracy)

def test_two_fits_append_to_a_history(two):
    with terminal_progress(): learn = classifier_learner(classifier_dls(two, tiny_tok(), bs=8), tiny_arch('bert'), cbs=CSVLogger(append=True))
    for _ in range(2): learn.fit(2, 1e-3)
    learn.to_hf('out')
    log = learn.csv_logger.read_log()
    assert [*log.epoch.astype(str)]==['0','1','epoch','0','1']

class Stop(Callback):
    "Press Ctrl-C in the second batch"
    def after_batch(self):
        if self.iter==1: raise KeyboardInterrupt

@pytest.mark.parametrize('name', ['CSVLogger','ShowGraphCallback','TensorBoardCallback','best model'])
@pytest.mark.parametrize('kind', ['classifier','language model','stage'])
def test_a_learner_is_exported(name, kind, arch, two):
    if kind=='stage': learn = fine_tune_classifier(two, arch, cbs=cbs[name](), epochs=1, bs=8, head_init='random').learner
    elif kind=='classifier': learn = classifier_learner(classifier_dls(two, tiny_tok(), bs=8), tiny_arch('bert'), cbs=cbs[name]())
    else: learn = lm_learner(lm_dls(two, tiny_tok(), bs=4, seq_len=16), tiny_arch('bert'), cbs=cbs[name]())
    if kind!='stage': learn.fit(1, 1e-3)
    for cut in (False,True)[:1+((name,kind)==('CSVLogger','classifier'))]:
        if cut:
            with pytest.raises(KeyboardInterrupt): learn.fit(1, 1e-3, cbs=Stop())
            learn.remove_cb(Stop)
        learn.export('o.pkl')
        again = load_learner(learn.path/'o.pkl')
        assert {type(o) for o in learn.cbs}<={type(o) for o in again.cbs}
        if kind!='language model': assert again.predict('a film')[0]==learn.predict('a film')[0]
    learn.fit(1, 1e-3) # goes on
    if name=='CSVLogger': assert len(learn.csv_logger.read_log())==1

def test_a_refit_has_no_validation_figures(arch, two, caplog):
    caplog.set_level(logging.INFO)
    Own.seen = 0
    rows = pd.concat([two, two.assign(is_valid=False)]) # each validation row is in training too
    each = [EarlyStoppingCallback('accuracy', patience=1, min_delta=99.), SaveModelCallback('accuracy'), ReduceLROnPlateau, Own('accuracy')]
    stage = fine_tune_classifier(rows, arch, 'out', cbs=each, epochs=4, bs=8, head_init='random', refit=True)
    said = [o.message for o in caplog.records if 'no validation figures' in o.message]
    assert len(said)==1 and 'EarlyStoppingCallback, SaveModelCallback, ReduceLROnPlateau, Own' in said[0]
    assert Own.seen in (1,2) and len(stage.curve)==2 and '1 of 1 validation' not in caplog.text
    assert sum('validation texts are also in training' in o.message for o in caplog.records)==1
    assert stage.schedule.total==2 # as many epochs on all rows

class Steps(Callback):
    "Count the training steps of each learner"
    def __init__(self): self.n = {}
    def after_batch(self): self.n[id(self.learn)] = self.n.get(id(self.learn), 0)+self.training

@pytest.mark.parametrize('each', [[], [EarlyStoppingCallback('accuracy', patience=1, min_delta=99.)]], ids=len)
def test_a_refit_trains_for_as_many_epochs(each, arch, two):
    steps = Steps()
    stage = fine_tune_classifier(two, arch, cbs=[*each, steps], epochs=4, bs=8, refit=True, head_init='random', schedule='full_tune')
    first,second = steps.n.values()
    assert first==(2 if each else 4)*len(stage.learner.dls.train) and second==first # in steps, of more rows an epoch

def test_trackers_do_not_see_the_contrastive_half(arch, two):
    Own.seen = 0
    stage = fine_tune_classifier(two, arch, cbs=[Own('accuracy'), SaveModelCallback('accuracy')], epochs=4, bs=8, head_init='contrastive')
    assert stage.contrasted and Own.seen==len(stage.curve)==2

# ---- what an evaluation keeps

class Blank(Callback):
    "Change what the network reads, in validation too"
    def before_batch(self): self.learn.xb = tuple(o[:,:2] for o in self.xb)

def test_callbacks_that_change_predictions_stay(two):
    dls = classifier_dls(two, tiny_tok(), bs=8)
    set_seed(0); plain = classifier_learner(dls, tiny_arch('bert'), cbs=[])
    set_seed(0); cut = classifier_learner(dls, tiny_arch('bert'), cbs=Blank())
    assert evaluate(cut)[0]['loss']==pytest.approx(cut.validate()[0]) and evaluate(cut)[0]['loss']!=pytest.approx(evaluate(plain)[0]['loss'], abs=1e-6)

class Saves(Callback):
    "Write the model in the middle of an epoch and after each"
    def after_batch(self):
        if self.training and self.iter==1: self.learn.to_hf('out/mid')
    def after_epoch(self): self.learn.to_hf(f'out/{self.epoch}')

def test_saving_inside_a_fit_does_not_change_it(two):
    def trained(*cbs):
        set_seed(1)
        dls = classifier_dls(two, tiny_tok(), bs=8)
        learn = classifier_learner(dls, tiny_arch('bert'), drop_mult=0., cbs=[CSVLogger(), *cbs])
        learn.fit_schedule(full_tune, 1e-3, epochs=2)
        return learn
    a,b = trained(),trained(Saves())
    assert [*map(str, a.recorder.losses)]==[*map(str, b.recorder.losses)] and all(torch.equal(x, y) for x,y in zip(a.model.parameters(), b.model.parameters()))
    assert from_hf('out/1')(['good'])==from_hf(b.to_hf('out/2'))(['good'])

def test_an_error_releases_the_lock(two):
    learn = classifier_learner(classifier_dls(two, tiny_tok(), bs=8), tiny_arch('bert'))
    class Fails(Callback):
        def before_batch(self): raise KeyError('broken')
        def before_fit(self): raise KeyError('broken')
    for _ in range(2):
        learn.add_cb(Fails())
        cbs,loggers = [*learn.cbs],learn.logger
        with pytest.raises(KeyError): evaluate(learn)
        assert not learn.lock.locked() and [*learn.cbs]==cbs and learn.logger is loggers
        learn.remove_cb(Fails)
        assert math.isfinite(evaluate(learn)[0]['loss'])

@pytest.mark.parametrize('build', [lambda df: classifier_learner(classifier_dls(df, tiny_tok(), bs=8), tiny_arch('bert')),
                                   lambda df: lm_learner(lm_dls(df, tiny_tok(), bs=4, seq_len=16), tiny_arch('bert'))], ids=['classifier','language model'])
def test_a_fit_is_the_same_after_lr_find(build, two):
    def trained(find):
        set_seed(3)
        learn = build(two)
        learn.fit(1, 1e-3)
        if find: learn.lr_find(num_it=find, show_plot=False)
        learn.fit(1, 1e-3)
        return learn
    a,*rest = map(trained, (0,8,40))
    for b in rest:
        assert [*map(str, a.recorder.losses)]==[*map(str, b.recorder.losses)]
        assert all(torch.equal(x, y) for x,y in zip(a.model.parameters(), b.model.parameters()))

def test_loggers_of_services_report(monkeypatch):
    for o in ('wandb','comet_ml','azureml','azureml.core','azureml.core.run','azureml.exceptions'):
        if o not in sys.modules: monkeypatch.setitem(sys.modules, o, MagicMock()) # none is installed
    found = [v for o in ('wandb','comet','azureml','tensorboard') for v in vars(cbs_of(o)).values()
             if isinstance(v, type) and issubclass(v, Callback) and v.__module__==f'fastai.callback.{o}']
    assert len(found)>=6 and all(map(reports, found))

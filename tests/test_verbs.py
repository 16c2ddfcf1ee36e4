"Every fastai verb works on both learners; nbs/54_verbs shows each"
import copy, html, re, warnings
from functools import partial
import numpy as np, pandas as pd, pytest
import matplotlib; matplotlib.use('agg')
import matplotlib.pyplot as plt
import torch.nn.functional as F
from fastai.basics import CategoryBlock, ColReader, DataBlock, RandomSplitter
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.mixup import MixUp
from fastai.callback.schedule import minimum, slide, steep, valley
from fastai.callback.tracker import EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.learner import load_learner
from fastai.losses import BaseLoss, BCEWithLogitsLossFlat, CrossEntropyLossFlat, FocalLossFlat, L1LossFlat, LabelSmoothingCrossEntropyFlat, MSELossFlat
from fastai.metrics import F1Score, F1ScoreMulti, MatthewsCorrCoef, Perplexity, RocAuc, RocAucBinary, RocAucMulti, accuracy
from fastformers.text.core import as_tokens
from fastformers.data.labels import class_weights
from fastformers.data.block import HFTextBlock, tokenizer_of
from fastformers.learner.core import classifier_learner, lm_learner
import fastformers.learner.generation # `fill_mask`
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_tags
from fastformers.objectives.core import TokenLoss
from test_contracts_common import *
from sklearn import metrics as skm

pytestmark = pytest.mark.exact

# ---- learners

def tagged():
    "`tiny_df` with tags of several names, and stars"
    df = tiny_df()
    return df.assign(tags=[f'{l};long' if len(t)>50 else l for l,t in zip(df.label, df.text)], stars=[float(i%7)/2 for i in range(len(df))])

data = {'classes':lambda: dict(df=tiny_df()), 'left':lambda: dict(df=tiny_df(), tok=tiny_tok('xlnet')), 'pairs':lambda: dict(df=tiny_pairs(), text_col=['text_a','text_b']),
        'tags':lambda: dict(df=tagged(), label_col='tags'), 'numbers':lambda: dict(df=tagged(), label_col='stars')}
one_class = ('classes','left','pairs')
masked_kinds = {'masked':'bert', 'causal':'gpt2'}

def make(kind, path, bs=4, **kwargs):
    "A learner of `kind`, a key of `data` or of `masked_kinds`, its weights large"
    torch.manual_seed(0)
    if kind in masked_kinds:
        learn = lm_learner(lm_dls(tiny_df(), tiny_tok(masked_kinds[kind]), bs=bs, seq_len=48), tiny_arch(masked_kinds[kind]), path=path, **kwargs)
    else: learn = classifier_learner(classifier_dls(**{'tok':tiny_tok('bert'), 'bs':bs, **data[kind]()}), tiny_arch('xlnet' if kind=='left' else 'bert'), path=path, **kwargs)
    return quiet(learn)

@pytest.fixture(scope='module')
def folder(tmp_path_factory): return tmp_path_factory.mktemp('learners')

@pytest.fixture(params=['classes','masked'])
def learn(request, tmp_path): return make(request.param, tmp_path, bs=8)

def shared(kinds):
    "A fixture: one learner of each of `kinds` for all tests that leave it as it is"
    @pytest.fixture(scope='module', params=kinds)
    def f(request, folder):
        res = make(request.param, folder)
        loud(res.model, by=4.)
        res.kind = request.param
        return res
    return f
still,any_learner,labelled = shared(['classes','left','masked']),shared([*data, *masked_kinds]),shared(['classes','pairs'])

def weights(learn): return {k:v.detach().clone() for k,v in learn.model.state_dict().items()}
def same(a, b): return all(torch.equal(v, b[k]) for k,v in a.items())
def moved(learn, before):
    "For each layer group: did it move?"
    now = dict(learn.model.named_parameters())
    names = {id(p):k for k,p in now.items()}
    return [any(not torch.equal(p, before[names[id(p)]]) for p in g) for g in learn.splitter(learn.model)]

def hyper(learn, name='lr'): return learn.recorder.hps[name]

# ---- training

def test_lr_find_takes_rates_and_steps_in_the_order_of_fastai(learn):
    learn.lr_find(1e-4, 1e-2, 5, show_plot=False)
    lrs = learn.recorder.lrs
    assert lrs[0]==pytest.approx(1e-4) and max(lrs)<=.011 and len(lrs)<10, lrs

def test_lr_find_suggests_and_leaves_the_weights(learn):
    before = weights(learn)
    res = learn.lr_find(suggest_funcs=(minimum, steep, valley, slide))
    assert all(1e-7<o<10 for o in res) and res._fields==('minimum','steep','valley','slide')
    assert same(before, weights(learn)) and plt.gcf().axes
    plt.close('all')
    learn.fit(1, res.valley)
    assert not same(before, weights(learn)) and not list(learn.path.rglob('_tmp*'))

def test_fit_one_cycle_warms_up_and_anneals(learn):
    before = weights(learn)
    learn.fit_one_cycle(2, 1e-2, pct_start=.5)
    lrs = hyper(learn)
    assert len(lrs)==2*len(learn.dls.train) and abs(int(np.argmax(lrs))-len(lrs)//2)<=1 and max(lrs)==pytest.approx(1e-2)
    assert not same(before, weights(learn)) and len(learn.recorder.values)==2

def test_fit_flat_cos_is_flat_then_falls(learn):
    learn.fit_flat_cos(2, 1e-3, pct_start=.5)
    lrs = hyper(learn)
    assert lrs[:len(lrs)//2]==pytest.approx([1e-3]*(len(lrs)//2)) and lrs[-1]<5e-4

def test_a_slice_of_rates_reaches_the_groups_in_equal_ratios(learn):
    learn.fit_one_cycle(1, slice(1e-4, 1e-2))
    got = [h['lr'] for h in learn.opt.hypers]
    ratios = [b/a for a,b in zip(got, got[1:])]
    assert len(got)==5 and ratios==pytest.approx([100**.25]*4, rel=1e-4)

def test_fine_tune_trains_the_head_first_then_all(learn):
    steps = []
    class Watch(Callback):
        def after_step(self): steps.append(moved(self.learn, before))
    before = weights(learn)
    learn.fine_tune(1, 1e-2, cbs=Watch())
    n = len(learn.dls.train)
    assert len(steps)==2*n and steps[n-1]==[False]*4+[True] and all(steps[-1])

@pytest.mark.parametrize('verb,groups', [(lambda o: o.freeze(), '....x'), (lambda o: o.freeze_to(-2), '...xx'), (lambda o: o.freeze_to(1), '.xxxx'), (lambda o: o.unfreeze(), 'xxxxx')])
def test_freezing_decides_which_groups_move(learn, verb, groups):
    verb(learn)
    before = weights(learn)
    learn.fit(1, 1e-2, wd=.1)
    assert moved(learn, before)==[o=='x' for o in groups]

def test_frozen_and_thawed_again_by_hand(learn):
    learn.freeze(); learn.fit(1, 1e-2); learn.unfreeze()
    before = weights(learn)
    learn.fit(1, 1e-2)
    assert all(moved(learn, before))

# ---- tables

def rows_of(table, n, *cols):
    assert len(table)==n and all(set(cols)<=set(r) for r in table), table

def test_show_batch(any_learner, shown):
    any_learner.dls.show_batch(max_n=3); any_learner.dls.show_batch(max_n=99); any_learner.dls.valid.show_batch(max_n=2)
    for t,n in zip(shown, (3,4,2)): rows_of(t, n, 'text', 'target')
    if any_learner.kind=='masked': assert all('<b style' in r['text'] and '<b style' in r['target'] for t in shown for r in t)

def test_show_batch_unique_shows_one_text(any_learner, shown):
    any_learner.dls.show_batch(max_n=3, unique=True)
    rows_of(shown[0], 3, 'text', 'target')
    assert all(r==shown[0][0] for r in shown[0])
    any_learner.dls.show_batch(max_n=4)                              # the order is its own again
    assert len({r['text'] for r in shown[1]})>1

def test_show_batch_and_results_write_into_given_rows(still, shown):
    for show in (still.dls.show_batch, still.show_results):
        show(max_n=3, ctxs=[{'n':'a'}, pd.Series({'n':'b'})])
        assert [r['n'] for r in shown.pop()]==['a','b']

def test_show_results(any_learner, shown):
    for kwargs,n in ((dict(max_n=2),2), (dict(max_n=99),4), (dict(ds_idx=0, max_n=3),3), (dict(shuffle=False),4)):
        any_learner.show_results(**kwargs)
        rows_of(shown.pop(), n, 'text', 'target', 'predicted')

def test_results_of_a_masked_model_are_the_most_probable_words_in_place(folder, shown):
    learn = make('masked', folder)
    loud(learn.model, by=4.)
    learn.show_results(shuffle=False)
    tok,(x,y) = tokenizer_of(learn.dls),learn.dls.valid.one_batch()
    with torch.no_grad(): best = learn.model(x).argmax(-1)
    for r,ids,pred,ys in zip(shown[0], x, best, y):
        ids,ys = as_tokens(ids),ys.as_subclass(Tensor)
        words = ids.ids.clone(); words[ids.predicted] = pred[:int(ids.predicted.sum())]
        assert html.unescape(re.sub('<[^>]*>', '', r['predicted']))==str(tok.decode(ids.replace(ids=words)))
        assert html.unescape(re.sub('<[^>]*>', '', r['target']))==str(tok.decode(ids.replace(ids=torch.where(ys==-100, ids.ids, ys))))
        assert r['predicted'].count('<b style')<=r['text'].count('<b style')

def test_a_causal_model_is_shown_word_by_word(folder, shown):
    learn = make('causal', folder)
    loud(learn.model, by=4.)
    learn.dls.valid.show_batch(max_n=3); learn.show_results(max_n=3, shuffle=False)
    tok,(x,_) = tokenizer_of(learn.dls),learn.dls.valid.one_batch()
    with torch.no_grad(): best = learn.model(x).argmax(-1)
    for r in shown[0]+shown[1]: assert r['text']==r['target'] and r['text'].count('<b style')==1      # all but the first token, in one piece
    for r,ids,pred in zip(shown[1], x, best):
        ids = as_tokens(ids); words = ids.ids.clone(); n = int(ids.predicted.sum()); words[1:n+1] = pred[:n]
        assert html.unescape(re.sub('<[^>]*>', '', r['predicted'])).replace('\ufffd','')==str(tok.decode(ids.replace(ids=words))).replace('\ufffd','')

def test_long_texts_are_cut_and_html_is_escaped(tmp_path, shown):
    df = pd.DataFrame(dict(text=['<script>alert(1)</script> & <br /> '+'word '*40, 'a < b', 'fine', '<b>bold</b>']*4, label=['<i>x</i>','y&z']*8, is_valid=[False]*12+[True]*4))
    learn = quiet(classifier_learner(classifier_dls(df, tiny_tok('roberta'), bs=4), tiny_arch('roberta'), path=tmp_path))
    learn.dls.show_batch(trunc_at=60); learn.show_results(trunc_at=60); ClassificationInterpretation.from_learner(learn).plot_top_losses(4, trunc_at=60)
    assert len(shown)==3
    for r in (r for t in shown for r in t):
        assert len(html.unescape(r['text']))<=61 and not re.search('<(script|br|b>|i>)', ''.join(r.values()))
        assert r['target'] in ('&lt;i&gt;x&lt;/i&gt;', 'y&amp;z')

def test_outside_notebooks_a_table_is_printed(still, capsys):
    still.dls.show_batch(max_n=2)
    out = capsys.readouterr().out
    assert len(out.splitlines())==3 and 'target' in out and '<' not in out

def test_summary_counts_the_weights(still):
    s = still.summary()
    if still.kind=='left': pytest.skip('some of XLNet\'s weights belong to no layer that fastai lists')
    n = sum(p.numel() for p in still.model.parameters())
    if still.kind=='masked': n += still.model.hf.get_output_embeddings().weight.numel()  # tied: fastai counts it where it is used, twice
    assert f'Total params: {n:,}' in s and 'FusedAdam' in s and ' at 0x' not in s

# ---- predictions (their order and values: test_contracts_learner)

parts = dict(with_input=True, with_decoded=True, with_loss=True)

@pytest.mark.parametrize('ds_idx', [0,1])
def test_get_preds_gives_a_row_an_item(any_learner, ds_idx):
    learn,ds = any_learner,any_learner.dls[ds_idx].dataset
    x,p,y,d,loss = learn.get_preds(ds_idx=ds_idx, **parts)
    assert len(x)==len(p)==len(y)==len(d)==len(loss)==len(ds) and torch.is_tensor(x) and x.shape[1]==learn.dls[ds_idx].lengths.max()
    x = as_tokens(x)
    for i,o in enumerate(ds): assert int(x[i].real.sum())==len(o[0]) # each row is that item
    if learn.kind not in masked_kinds: assert all(torch.equal(x[i][x[i].real].ids, o[0].ids) for i,o in enumerate(ds))
    assert torch.is_tensor(y) and torch.is_tensor(d) and bool(loss.isfinite().all())
    for k in parts:
        got = learn.get_preds(ds_idx=ds_idx, **{k:True})
        assert len(got)==3 and all(len(o)==len(ds) for o in got)
    again = learn.get_preds(ds_idx=ds_idx, with_loss=True)[2]
    assert gap(again, loss)<1e-5

def test_rows_fed_back_as_given_predict_the_same(still):
    "What `get_preds(with_input=True)` returns is a batch: padding added to join batches is padding"
    x,p = still.get_preds(with_input=True)[:2]
    with torch.no_grad(): out = still.model.eval()(as_tokens(x)).softmax(-1)
    for a,b,o in zip(out, p, as_tokens(x)): n = int(o.predicted.sum()) if still.kind=='masked' else len(b); assert gap(a[:n], b[:n])<1e-5

def texts_of(kind): return [('a man plays', 'he makes music'), ('a dog', 'the dog sleeps in the park'), ('rain', 'it is wet')]*3 if kind=='pairs' else ['A joy.', 'Broken after two days.', 'OK']*3

def test_test_dl_on_raw_texts_keeps_their_order(any_learner):
    learn,items = any_learner,texts_of(any_learner.kind)
    dl = learn.dls.test_dl(items)
    tok = tokenizer_of(learn.dls)
    x,p,y = learn.get_preds(dl=dl, with_input=True)[:3]
    assert y is None or learn.kind in masked_kinds
    assert [int(o.real.sum()) for o in as_tokens(x)]==[len(tok(o)) for o in items]
    for i,o in enumerate(items):
        one = learn.get_preds(dl=learn.dls.test_dl([o]))[0][0]
        n = len(one); assert gap(p[i][:n], one)<1e-5
    seen = [n for b in dl for n in as_tokens(b[0]).real.sum(1).tolist()]
    assert seen==[len(tok(o)) for o in items]                        # iterated, too
    direct = learn.get_preds(dl=dl, reorder=False)[0]
    assert all(gap(a[:len(b)], b[:len(a)])<1e-5 for a,b in zip(direct, p))

def test_test_dl_on_a_frame_with_and_without_labels(any_learner):
    learn = any_learner
    df = learn.dls and (tiny_pairs() if learn.kind=='pairs' else tagged())
    df = df[df.is_valid]
    p,y = learn.get_preds()
    q,none = learn.get_preds(dl=learn.dls.test_dl(df.drop(columns=[c for c in ('label','tags','stars') if c in df])))
    if learn.kind not in masked_kinds: assert none is None
    assert all(gap(a[:len(b)], b[:len(a)])<1e-5 for a,b in zip(p, q))
    dl = learn.dls.test_dl(df, with_labels=True)
    r,t = learn.get_preds(dl=dl)
    assert torch.equal(t, y) and all(gap(a[:len(b)], b[:len(a)])<1e-5 for a,b in zip(p, r))
    assert [*learn.validate(dl=dl)]==pytest.approx([*learn.validate()], rel=1e-5)

def test_validate_on_training_rows(still):
    before = weights(still)
    loss,*_ = still.validate(ds_idx=0)
    per_row = still.get_preds(ds_idx=0, with_loss=True)[2]
    if still.kind!='masked': assert loss==pytest.approx(float(per_row.mean()), abs=1e-5)
    assert same(before, weights(still))

def test_predict(any_learner):
    learn = any_learner
    item = texts_of(learn.kind)[0]
    dec,ids,p = learn.predict(item)
    inp,*rest = learn.predict(item, with_input=True)
    assert len(rest)==3 and len(str(inp))>3
    if learn.kind in one_class: assert dec==learn.dls.vocab[int(ids)] and p.sum()==pytest.approx(1, abs=1e-5)
    if learn.kind=='tags': assert list(dec)==[v for v,o in zip(learn.dls.vocab, p) if o>.5 or o==p.max()]
    if learn.kind=='numbers': assert len(p)==1 and np.isscalar(dec[0])
    if learn.kind in masked_kinds: assert ids.tolist()==p.argmax(-1).tolist() and isinstance(dec, str)

def test_fill_mask_gives_likely_words(folder):
    learn = make('masked', folder)
    res = learn.fill_mask('The film was [MASK] and [MASK].', n=4)
    assert [len(o) for o in res]==[4,4]
    for o in res: assert [r['score'] for r in o]==sorted((r['score'] for r in o), reverse=True) and all({'token_str','score','sequence'}<=set(r) for r in o)

# ---- interpretation

def test_confusion_matrix_and_its_plot(labelled):
    interp = ClassificationInterpretation.from_learner(labelled)
    cm = interp.confusion_matrix()
    p,y = labelled.get_preds()
    assert cm.tolist()==skm.confusion_matrix(y, p.argmax(1)).tolist()
    for norm in (False, True): interp.plot_confusion_matrix(normalize=norm, figsize=(3,3)); assert plt.gca().get_ylabel()=='Actual'
    plt.close('all')
    off = cm.copy(); np.fill_diagonal(off, 0)
    assert sum(n for *_,n in interp.most_confused())==off.sum()

def test_classification_report(labelled, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')                              # sklearn's, on a class that is never predicted
        ClassificationInterpretation.from_learner(labelled).print_classification_report()
    out = capsys.readouterr().out
    assert all(str(v) in out for v in labelled.dls.vocab) and f"{len(labelled.dls.valid_ds)}" in out

@pytest.mark.parametrize('df', [tagged().assign(label=tagged().tags.str.split(';')), tiny_tags()], ids=['several labels','tags of words'])
def test_interpretation_by_class_is_for_one_class_a_text(df, folder):
    learn = classifier_learner(classifier_dls(df, tiny_tok(), bs=4), tiny_arch('bert'), path=folder)
    interp = ClassificationInterpretation.from_learner(learn)
    for verb in ('confusion_matrix','most_confused','plot_confusion_matrix','print_classification_report'):
        with pytest.raises(TypeError, match='one class a text.*class_scores'): getattr(interp, verb)()

def test_interpretation_by_class_is_not_for_numbers(folder):
    learn = classifier_learner(classifier_dls(tiny_df().assign(label=tiny_df().text.map(len)/10), tiny_tok(), bs=4), tiny_arch('bert'), path=folder)
    with pytest.raises(TypeError, match='one class a text, this is regression'): ClassificationInterpretation.from_learner(learn)

def test_two_texts_are_no_pair_for_a_data_block(folder):
    block = DataBlock(blocks=(HFTextBlock(tiny_tok()), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=RandomSplitter(.3, seed=1))
    learn = classifier_learner(block.dataloaders(tiny_df(), bs=4), tiny_arch('bert'), path=folder)
    for two in (['a','b'],('a','b')):
        with pytest.raises(TypeError, match='trained on single texts'): learn.predict(two)
        with pytest.raises(TypeError, match='trained on single texts'): as_predictor(learn)([two])

def test_top_losses_over_several_batches_belong_to_their_rows(any_learner, shown):
    learn = any_learner
    interp = Interpretation.from_learner(learn)
    n,losses = len(learn.dls.valid_ds),learn.get_preds(with_loss=True)[2]
    interp.plot_top_losses(n, trunc_at=10_000); interp.plot_top_losses(range(2, n), trunc_at=10_000); interp.plot_top_losses(3, largest=False, trunc_at=10_000)
    table,rest,least = shown
    assert n>learn.dls.valid.bs and len(table)==n and rest==table[2:] and least==table[::-1][:3]
    at = losses.argsort(descending=True).tolist()
    assert [float(r['loss']) for r in table]==pytest.approx([float(losses[i]) for i in at], abs=1e-3)
    x,_,y,d = (learn.get_preds(with_input=True, with_decoded=True))
    for i,r in list(zip(at, table))[:5]:
        b = (as_tokens(x[i])[None], y[i][None])
        text,target = learn.dls.decode_batch(b)[0]
        assert html.unescape(re.sub('<[^>]*>', '', r['text']))==str(text)
        if learn.kind in one_class: assert r['target']==target and r['predicted']==learn.dls.vocab[int(d[i])]
    assert ('probability' in table[0])==(learn.kind in one_class)

def test_interpretation_of_training_rows_and_of_a_test_loader(labelled, shown):
    a = ClassificationInterpretation.from_learner(labelled, ds_idx=0)
    assert a.confusion_matrix().sum()==len(labelled.dls.train_ds)
    df = tiny_pairs() if labelled.kind=='pairs' else tiny_df()
    b = ClassificationInterpretation.from_learner(labelled, dl=labelled.dls.test_dl(df, with_labels=True))
    b.plot_top_losses(11)
    assert len(b.losses)==len(df) and len(shown[0])==11

@pytest.mark.parametrize('kwargs', [dict(max_tokens=60), dict(num_workers=2), dict(bs=64)])
def test_predictions_do_not_depend_on_the_loader(still, kwargs):
    dl = still.dls.valid.new(**kwargs)
    x,p,y,d,loss = still.get_preds(**parts)
    n = as_tokens(x).predicted.sum(1).tolist() if still.kind=='masked' else [3]*len(x)      # the rest of a row's places say nothing
    def check(q): assert len(q)==len(p) and all(gap(a[:k], b[:k])<1e-5 for a,b,k in zip(p, q, n))
    z,q,t,e,other = still.get_preds(dl=dl, **parts)
    assert torch.equal(x, z) and torch.equal(y, t) and gap(loss, other)<1e-5 and all(a.tolist()==b.tolist() if not a.dim() else torch.equal(a[:k], b[:k]) for a,b,k in zip(d, e, n))
    check(q)
    items = [o['ids'] for o in still.dls.valid_ds.items]
    for reorder in (True, False): check(still.get_preds(dl=still.dls.test_dl(items, **kwargs), reorder=reorder)[0])

# ---- keeping

def test_save_and_load_restore_weights_and_optimizer(learn):
    learn.fit(1, 1e-2)
    want,state = weights(learn),copy.deepcopy(learn.opt.state_dict()['state'])
    learn.save('mine'); learn.fit(1, 1e-1)
    assert not same(want, weights(learn))
    learn.load('mine')
    again = learn.opt.state_dict()['state']
    assert same(want, weights(learn)) and len(state)==len(again)>9 and all(torch.equal(a[k], b[k]) for a,b in zip(state, again) for k in a if torch.is_tensor(a[k]))

def test_an_exported_learner_predicts_the_same(any_learner):
    learn,item = any_learner,texts_of(any_learner.kind)[1]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')                              # fastai's, on pickles
        learn.export('learner.pkl')
        again = load_learner(learn.path/'learner.pkl')
    assert gap(again.predict(item)[2], learn.predict(item)[2])<1e-6
    p = learn.get_preds(dl=learn.dls.test_dl([item]*2))[0]
    assert gap(again.get_preds(dl=again.dls.test_dl([item]*2))[0], p)<1e-6

# ---- callbacks

def test_the_best_model_is_kept(learn):
    learn.fit(3, 1e-1, cbs=SaveModelCallback(monitor='valid_loss', fname='best'))
    best = min(r[1] for r in learn.recorder.values)
    assert learn.validate()[0]==pytest.approx(best, abs=1e-4) and (learn.path/'models/best.pth').is_file()

def test_training_stops_early(learn):
    learn.fit(5, 1e-2, cbs=EarlyStoppingCallback(monitor='valid_loss', min_delta=100., patience=2))
    assert len(learn.recorder.values)==3

def test_the_rate_falls_on_a_plateau(learn):
    learn.fit(4, 1e-2, cbs=ReduceLROnPlateau(monitor='valid_loss', min_delta=100., patience=1, factor=10))
    assert learn.opt.hypers[-1]['lr']==pytest.approx(1e-5) # three epochs brought nothing

def test_gradients_are_clipped(learn):
    sizes = []
    class Watch(Callback):
        order = 99
        def before_step(self): sizes.append(float(torch.stack([p.grad.norm() for p in self.model.parameters() if p.grad is not None]).norm()))
    learn.fit(1, 1e-3, cbs=[GradientClip(1e-2), Watch()])
    assert sizes and max(sizes)<=1.001e-2

def test_gradients_are_accumulated(learn):
    steps = []
    class Watch(Callback):
        def after_step(self): steps.append(self.iter)
    learn.fit(1, 1e-3, cbs=[GradientAccumulation(16), Watch()])
    assert steps and len(steps)<=len(learn.dls.train)//2

def test_a_log_is_written(learn):
    learn.fit(2, 1e-3, cbs=CSVLogger())
    log = pd.read_csv(learn.path/'history.csv')
    assert len(log)==2 and {'epoch','train_loss','valid_loss','accuracy'}<=set(log.columns)
    assert log.valid_loss.tolist()==pytest.approx([r[1] for r in learn.recorder.values], abs=1e-4)

@pytest.mark.parametrize('tracker', [EarlyStoppingCallback, SaveModelCallback, ReduceLROnPlateau])
def test_a_callback_that_watches_what_is_not_measured_says_so(tracker, tmp_path):
    "fastai's own error is: tuple index out of range"
    df,tok,arch = tiny_df(),tiny_tok('bert'),tiny_arch('bert')
    makers = ((classifier_learner, classifier_dls(df, tok), 'accuracy'), (lm_learner, lm_dls(df, tok), 'perplexity'))
    for make,dls,name in makers:
        says = f"(?s){tracker.__name__}.*`monitor` 'eval_loss' is not measured; expected one of train_loss, valid_loss, .*{name}"
        learn = quiet(make(dls, arch, path=tmp_path, cbs=tracker(monitor=name)))
        with learn.no_logging(): learn.fit(1)
        with pytest.raises(ValueError, match=says): learn.fit(1, cbs=tracker(monitor='eval_loss'))
        with pytest.raises(ValueError, match=says): quiet(make(dls, arch, path=tmp_path, cbs=tracker(monitor='eval_loss'))).fit(1)

def test_an_export_that_fails_leaves_the_learner_as_it_was(learn):
    "fastai left it without data and optimizer"
    learn.fit(1, 1e-3)
    n,opt = len(learn.dls.train_ds),learn.opt
    with pytest.raises(RuntimeError, match='does not exist'): learn.export('nowhere/export.pkl')
    assert (len(learn.dls.train_ds),learn.opt)==(n,opt)

def test_tensorboard_is_written(learn, tmp_path):
    pytest.importorskip('tensorboard', reason='the package tensorboard is not installed')
    from fastai.callback.tensorboard import TensorBoardCallback
    learn.fit(1, 1e-3, cbs=TensorBoardCallback(tmp_path/'tb', trace_model=False, log_preds=False))
    assert list((tmp_path/'tb').rglob('events*'))

@pytest.mark.filterwarnings('ignore:.*CUDA is not available')
@pytest.mark.parametrize('verb', ['to_fp16','to_bf16'])
def test_half_precision_changes_nothing_on_a_cpu(learn, verb):
    if torch.cuda.is_available(): pytest.skip('for machines without a GPU')
    x = learn.dls.valid.one_batch()[0]
    a = learn.model.eval()(x)
    getattr(learn, verb)()
    assert learn.fit(1, 1e-3) is None and all(p.dtype==torch.float32 for p in learn.model.parameters())
    assert all(np.isfinite(r[:2]).all() for r in learn.recorder.values) and a.dtype==torch.float32
    (learn.to_fp32 if verb=='to_fp16' else lambda: learn.remove_cb(MixedPrecision))()
    learn.validate()

def test_no_bar(learn, capsys):
    learn.add_cb(ProgressCallback())
    with learn.no_bar(): learn.fit(1, 1e-3); assert not hasattr(learn, 'progress')
    assert hasattr(learn, 'progress') and '%' not in capsys.readouterr().out

def test_mixing_ids_is_refused(learn):
    with pytest.raises(RuntimeError, match='MixUp'): learn.fit(1, 1e-3, cbs=MixUp())

# ---- losses

def smoothed(p, y, eps, w=None):
    "Label smoothing as torch defines it, by hand: the target is (1-eps) on the class and eps/c on each; each class's share weighs as the class, the mean over the rows' weights"
    w = torch.ones(p.shape[1]) if w is None else w
    lp = p.log_softmax(1)*w
    rows = -(1-eps)*lp.gather(1, y[:,None])[:,0] - eps/p.shape[1]*lp.sum(1)
    return rows, rows.sum()/w[y].sum()

w3 = torch.tensor([3.,1.,.25])
def fastai_smoothed(p, y, eps):
    lp = p.log_softmax(1)
    rows = -(1-eps)*lp.gather(1, y[:,None])[:,0] - eps*lp.mean(1)
    return rows, rows.mean()
class_losses = {'smoothing':(LabelSmoothingCrossEntropyFlat(eps=.2), lambda p,y: fastai_smoothed(p, y, .2)), 'torch smoothing':(CrossEntropyLossFlat(label_smoothing=.2), lambda p,y: smoothed(p, y, .2)),
    'weights':(CrossEntropyLossFlat(weight=w3), lambda p,y: smoothed(p, y, 0, w3)), 'both':(CrossEntropyLossFlat(weight=w3, label_smoothing=.2), lambda p,y: smoothed(p, y, .2, w3))}

@pytest.mark.parametrize('name', class_losses)
def test_smoothing_and_class_weights_are_what_their_formula_says(name, folder, shown):
    loss_func,by_hand = class_losses[name]
    learn = make('classes', folder, bs=15, loss_func=loss_func)
    loud(learn.model, by=4.)
    logits = learn.get_preds(act=torch.nn.Identity())[0]
    p,y,d,loss = learn.get_preds(with_decoded=True, with_loss=True)
    y = y.as_subclass(Tensor)
    rows,mean = by_hand(logits, y)
    assert gap(loss, rows)<1e-5 and learn.validate()[0]==pytest.approx(float(mean), abs=1e-5)     # one batch of 15
    assert gap(p, logits.softmax(1))<1e-6 and torch.equal(d, logits.argmax(1))                    # probabilities and labels do not know the loss
    assert learn.predict('A joy.')[2].sum()==pytest.approx(1, abs=1e-5)
    ClassificationInterpretation.from_learner(learn).plot_top_losses(15)
    assert [float(r['loss']) for r in shown[0]]==pytest.approx(sorted(rows.tolist(), reverse=True), abs=1e-3)
    learn.fit(1, 1e-3)
    assert learn.metrics[0].name=='accuracy'

def test_class_weights_count_what_they_say(folder):
    df = tiny_df()
    df = df[(df.label!='positive') | (np.arange(len(df))%3==2)&(np.arange(len(df))%2==0) | df.is_valid]
    dls = classifier_dls(df, tiny_tok('bert'), bs=8)
    w = class_weights(dls)
    n = df[~df.is_valid].label.value_counts()[list(dls.vocab)].to_numpy()
    assert len(w)==dls.c and np.allclose(w.numpy()*n, (w.numpy()*n).mean())                        # rare classes weigh as much as frequent ones, together
    quiet(classifier_learner(dls, tiny_arch('bert'), loss_func=CrossEntropyLossFlat(weight=w), path=folder)).fit(1, 1e-3)

other_losses = {'focal':('classes', FocalLossFlat(gamma=2.)), 'tags':('tags', BCEWithLogitsLossFlat(thresh=.3, pos_weight=torch.tensor([1.,2.,3.,4.]))), 'l1':('numbers', L1LossFlat()), 'mse':('numbers', MSELossFlat())}
@pytest.mark.parametrize('name', other_losses)
def test_other_losses_of_fastai(name, folder):
    kind,f = other_losses[name]
    learn = make(kind, folder, loss_func=f)
    learn.fit(1, 1e-3)
    p,y,d,loss = learn.get_preds(with_decoded=True, with_loss=True)
    assert len(loss)==len(p) and bool(loss.isfinite().all())
    if kind=='tags': assert torch.equal(d, p>.3) and len(learn.predict('A joy.')[0])==int((learn.predict('A joy.')[2]>.3).sum())
    if name=='l1': assert gap(loss, (p[:,0]-y).abs())<1e-5

@pytest.mark.parametrize('f', [TokenLoss(label_smoothing=.2), TokenLoss(label_smoothing=.5)])
def test_probabilities_of_a_language_model_do_not_know_the_loss(f, folder):
    a = make('masked', folder)
    loud(a.model, by=4.)
    p,d = a.get_preds(with_decoded=True)[::2]
    plain,_ = a.validate()[:2]
    a.loss_func = f
    q,e = a.get_preds(with_decoded=True)[::2]
    assert torch.equal(d, e) and all(gap(x, y)<1e-6 for x,y in zip(p, q)) and abs(a.validate()[0]-plain)>1e-4

@pytest.mark.parametrize('kind', ['classes','masked'])
def test_drop_mult_scales_every_dropout(kind, folder):
    ps = [[m.p for m in make(kind, folder, drop_mult=o).model.modules() if isinstance(m, torch.nn.Dropout)] for o in (1.,.5,0.)]
    assert max(ps[0])>0 and ps[1]==pytest.approx([o/2 for o in ps[0]]) and set(ps[2])=={0.}

# ---- metrics

def metric(learn, name): return dict(zip(learn.recorder.metric_names[2:-1], learn.validate()))[name]

def test_metrics_of_classes(folder):
    learn = make('classes', folder, metrics=[accuracy, F1Score(average='macro'), MatthewsCorrCoef(), RocAuc()])
    learn.fit(4, 3e-3)
    p,y = learn.get_preds()
    p,y = p.double().numpy(),y.numpy()
    want = [skm.accuracy_score(y, p.argmax(1)), skm.f1_score(y, p.argmax(1), average='macro'), skm.matthews_corrcoef(y, p.argmax(1)), skm.roc_auc_score(y, p/p.sum(1, keepdims=True), multi_class='ovr')]
    assert [*learn.validate()][1:]==pytest.approx(want, abs=1e-5)

def test_metrics_of_two_classes(folder):
    learn = make('pairs', folder, metrics=[RocAucBinary(), F1Score()])
    learn.fit(10, 3e-3)
    p,y = learn.get_preds()
    assert len(p.argmax(1).unique())==2
    assert [*learn.validate()][1:]==pytest.approx([skm.roc_auc_score(y, p[:,1]), skm.f1_score(y, p.argmax(1))], abs=1e-5)

def test_metrics_of_tags(folder):
    learn = make('tags', folder, metrics=[F1ScoreMulti(average='micro'), RocAucMulti(average='macro')])
    learn.fit(4, 3e-3)
    p,y = learn.get_preds()
    assert len((p>.5).unique())==2
    assert [*learn.validate()][1:]==pytest.approx([skm.f1_score(y, p>.5, average='micro', zero_division=0), skm.roc_auc_score(y, p, average='macro')], abs=1e-5)

@pytest.mark.parametrize('kind', masked_kinds)
def test_perplexity_of_a_language_model(kind, folder):
    learn = make(kind, folder)
    loss,acc,ppl,_ = learn.validate()
    assert ppl==pytest.approx(np.exp(loss), rel=1e-5)
    p,y = learn.get_preds()
    right = n = 0
    for a,b in zip(p, y):
        b = b[b!=-100]; right += int((a[:len(b)].argmax(-1)==b).sum()); n += len(b)
    assert acc==pytest.approx(right/n, abs=1e-6)
    learn.metrics = [Perplexity()]                                   # fastai's own: rows, not words
    assert learn.validate()[1]>1

@pytest.mark.parametrize('loss', [torch.nn.CrossEntropyLoss(), F.cross_entropy], ids=['module','function'])
def test_a_loss_of_torch_gives_probabilities_and_labels_too(loss):
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), bs=8, device='cpu'), tiny_arch('bert'), loss_func=loss)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    preds,targs,dec,losses = learn.get_preds(with_decoded=True, with_loss=True)
    assert torch.allclose(preds.sum(1), torch.ones(len(preds))) and dec.equal(preds.argmax(1))
    assert torch.allclose(losses, F.nll_loss(preds.log(), targs, reduction='none'), atol=1e-5)
    assert learn.predict('a fine film')[0] in learn.dls.vocab

number_losses = {'mse':torch.nn.MSELoss(), 'l1':torch.nn.L1Loss(), 'huber':torch.nn.HuberLoss(), 'function':F.mse_loss, 'partial':partial(F.smooth_l1_loss, beta=.5), 
                 'own':lambda p,y,reduction='mean': F.mse_loss(p, y, reduction=reduction)}
by_row = {'mse':lambda d: d**2, 'l1':lambda d: d.abs(), 'huber':lambda d: torch.where(d.abs()<1, d**2/2, d.abs()-.5), 'partial':lambda d: torch.where(d.abs()<.5, d**2, d.abs()-.25)}

@pytest.mark.parametrize('name', number_losses)
def test_a_loss_for_numbers_compares_each_text_with_its_own(name, folder):
    learn = make('numbers', folder, bs=15, loss_func=number_losses[name])
    loud(learn.model, by=4.)
    p,y,losses = learn.get_preds(with_loss=True)
    want = by_row.get(name, by_row['mse'])((p[:,0]-y).as_subclass(Tensor))
    assert gap(losses, want)<1e-4 and learn.validate()[0]==pytest.approx(float(want.mean()), abs=1e-4)
    learn.fit(1, 1e-3)
    assert len(learn.predict('A joy.')[2])==1

def test_a_loss_for_numbers_learns_more_than_their_mean(folder):
    learn = make('numbers', folder, bs=8, loss_func=torch.nn.MSELoss())
    learn.fit_one_cycle(12, 1e-2)
    p,y = learn.get_preds(ds_idx=0)
    assert np.corrcoef(p[:,0].numpy(), y.numpy())[0,1]>.5

def test_a_wrapped_loss_is_still_the_users(tmp_path):
    own = torch.nn.CrossEntropyLoss(weight=w3, label_smoothing=.1)
    learn = make('classes', tmp_path, loss_func=own)
    assert learn.loss_func.f is own and not hasattr(own, 'decodes')
    learn.get_preds(with_loss=True)
    assert own.reduction=='mean' and isinstance(copy.deepcopy(learn.loss_func).f, torch.nn.CrossEntropyLoss)
    learn.export(tmp_path/'o.pkl')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert load_learner(tmp_path/'o.pkl').loss_func.f.label_smoothing==.1

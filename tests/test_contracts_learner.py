"The loss is the loss function's own; predictions belong to their rows"
import html, json, pytest, torch, warnings
from fastai.callback.core import Callback
from fastai.callback.tracker import SaveModelCallback
from fastai.data.all import CategoryBlock, ColReader, ColSplitter, DataBlock
from fastai.interpret import ClassificationInterpretation
from fastai.learner import load_learner
from fastai.losses import CrossEntropyLossFlat, LabelSmoothingCrossEntropyFlat
from fastai.metrics import Perplexity, accuracy
from fastcore.foundation import noop
from fastformers.callback.resume import Resume
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.models.adapters import add_lora
from fastformers.text.core import as_tokens
from fastformers.data.block import HFTextBlock, tokenizer_of
from fastformers.learner import probe # `fit_probe`
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.core import TokenLoss
from test_contracts_common import *

pytestmark = pytest.mark.exact

class CompareLoss(Callback):
    "(loss, what the loss function makes of the same predictions) for each batch"
    def before_fit(self): self.log = []
    def after_loss(self): self.log.append((self.learn.loss.detach().clone(), self.learn.loss_func(self.pred, *self.yb).detach()))

def loud_classifier(family='bert', df=None, loss_func=None, **kwargs):
    df = tiny_df() if df is None else df
    if kwargs.get('text_col')=='block':
        block = DataBlock(blocks=(HFTextBlock(tiny_tok(family)), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
        dls = block.dataloaders(df, bs=kwargs['bs'])
    else: dls = classifier_dls(df, tiny_tok(family), **kwargs)
    learn = quiet(classifier_learner(dls, tiny_arch(family), loss_func=loss_func))
    loud(learn.model)
    return learn

def check_losses(learn, plain):
    cb = CompareLoss()
    learn.fit(1, lr=1e-3, cbs=cb)
    assert len(cb.log)>=4 and all(torch.equal(a, b) for a,b in cb.log)
    x,y = learn.dls.train.one_batch()
    with torch.no_grad(): pred = learn.model.eval()(x)
    assert gap(learn.loss_func(pred, y), plain(pred, y))>1e-4 # the choice of loss function matters

weight = torch.tensor([5.,1.,.1])
@pytest.mark.parametrize('loss_func', [CrossEntropyLossFlat(weight=weight), LabelSmoothingCrossEntropyFlat(eps=.3), CrossEntropyLossFlat(label_smoothing=.3)])
def test_loss_of_a_classifier_is_loss_func_of_pred_and_target(loss_func): check_losses(loud_classifier(bs=15, loss_func=loss_func), CrossEntropyLossFlat())

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_loss_of_a_language_model_is_loss_func_of_pred_and_target(family):
    obj = objective(family)
    obj.loss_func = TokenLoss(label_smoothing=.2)
    learn = quiet(lm_learner(lm_dls(tiny_df().iloc[:24], obj.tfm, obj, bs=6), tiny_arch(family)))
    assert learn.loss_func is obj.loss_func
    check_losses(learn, TokenLoss())

def test_validation_loss_of_a_classifier_is_the_mean_over_rows():
    learn = loud_classifier(bs=4) # 15 rows: the last batch is short
    pred,y = learn.get_preds(act=torch.nn.Identity())
    loss,acc = learn.validate()
    assert abs(loss-torch.nn.functional.cross_entropy(pred, y.as_subclass(Tensor)).item())<1e-5 and abs(acc-(pred.argmax(1)==y).float().mean().item())<1e-6

# ---- rows

kinds = {'texts':('bert', tiny_df, 'text'), 'causal':('gpt2', tiny_df, 'text'), 'left':('xlnet', tiny_df, 'text'), 'pairs':('bert', tiny_pairs, ['text_a','text_b']),
         'block':('bert', tiny_df, 'block')}

@pytest.fixture(scope='module', params=kinds)
def rows(request):
    "(learner, its validation rows)"
    family,make,cols = kinds[request.param]
    df = make()
    return loud_classifier(family, df, text_col=cols, bs=4), df[df.is_valid], 'text' if cols=='block' else cols

@torch.no_grad()
def by_hand(learn, df, cols):
    "Probabilities of each row of `df`, computed alone"
    tok = tokenizer_of(learn.dls)
    items = df[cols].tolist() if isinstance(cols, str) else [tuple(o) for o in df[cols].values.tolist()]
    return torch.cat([learn.model.eval()(batch(tok, [o])) for o in items]).softmax(1), items

def test_get_preds_keeps_the_order_of_rows(rows):
    learn,df,cols = rows
    probs,_ = by_hand(learn, df, cols)
    seen = torch.cat([y for _,y in learn.dls.valid])
    pred,y = learn.get_preds()
    assert gap(pred, probs)<1e-5 and [learn.dls.vocab[i] for i in y]==df.label.tolist()
    assert seen.tolist()!=y.tolist() # the loader had another order
    pred,y = learn.get_preds(ds_idx=0)
    assert y.tolist()==[int(o[1]) for o in learn.dls.train_ds] and len(set(y.tolist()))>1

def test_predict_equals_get_preds(rows):
    learn,df,cols = rows
    pred,_ = learn.get_preds()
    for i,(_,row) in list(enumerate(df.iterrows()))[:4]:
        for item in [row[cols] if isinstance(cols, str) else tuple(row[cols]), row]:
            label,at,p = learn.predict(item)
            assert gap(p, pred[i])<1e-5 and label==learn.dls.vocab[int(at)] and int(at)==int(pred[i].argmax())
    new = df.drop(columns='label').iloc[::-1]
    got,_ = learn.get_preds(dl=learn.dls.test_dl(new))
    assert gap(got, pred.flip(0))<1e-5

def test_an_exported_learner_predicts_the_same(rows, tmp_path):
    learn,df,cols = rows
    item = df[cols].iloc[0] if isinstance(cols, str) else tuple(df[cols].iloc[0])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.export(tmp_path/'learner.pkl')
        again = load_learner(tmp_path/'learner.pkl')
    assert gap(again.predict(item)[2], learn.predict(item)[2])<1e-6

def test_predict_and_get_preds_warn_of_nothing(rows):
    learn,df,cols = rows
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.predict('a text' if isinstance(cols, str) else ('a text','another')); learn.get_preds(with_input=True)

def test_inputs_losses_and_decoded_predictions_are_those_of_the_row(rows):
    learn,df,cols = rows
    probs,items = by_hand(learn, df, cols)
    tok = tokenizer_of(learn.dls)
    x,pred,y,dec,loss = learn.get_preds(with_input=True, with_loss=True, with_decoded=True)
    assert len(x)==len(pred)==len(y)==len(dec)==len(loss)==len(df)
    for i,o in enumerate(items):
        t = as_tokens(x[i])
        assert torch.equal(t.ids[t.real], tok(o).ids)
        assert int(dec[i])==int(probs[i].argmax()) and abs(float(loss[i])+probs[i,y[i]].log().item())<1e-4

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_language_model_get_preds_gives_rows_in_order(family):
    obj,model = objective(family),language_model(family)
    dls = lm_dls(tiny_df(), obj.tfm, obj, seq_len=32, bs=4)
    learn = quiet(lm_learner(dls, tiny_arch(family)))
    learn.model.load_state_dict(model.state_dict())
    x,pred,y,dec,loss = learn.get_preds(with_input=True, with_loss=True, with_decoded=True)
    items = [o for o, in dls.valid_ds]
    assert len(x)==len(pred)==len(y)==len(dec)==len(loss)==len(items)>8
    for i,o in enumerate(items):
        hx,hy = obj((o[None],), split_idx=1)
        with torch.no_grad(): p = model(hx)
        n = p.shape[1]
        t = as_tokens(x[i])
        assert torch.equal(t[t.real].ids, hx.ids[0]) and y[i][t.real].tolist()==hy[0].tolist()
        assert gap(pred[i][:n], p[0].softmax(-1))<1e-5 and dec[i][:n].tolist()==p[0].argmax(-1).tolist()
        assert gap(loss[i], TokenLoss()(p, hy))<1e-4

def test_language_model_predict_equals_get_preds():
    learn = quiet(lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), seq_len=64, bs=4), tiny_arch('bert')))
    loud(learn.model)
    pred = learn.get_preds()[0]
    for i in (0, 3, 5):
        text,dec,p = learn.predict(learn.dls.valid_ds.items[i]['ids'])
        assert gap(p, pred[i][:len(p)])<1e-5 and dec.tolist()==p.argmax(-1).tolist()

# ---- what is shown

def test_plot_top_losses_shows_each_text_with_its_own_loss(rows, shown):
    learn,df,cols = rows
    if not isinstance(cols, str): pytest.skip('a pair is shown as one text')
    tok = tokenizer_of(learn.dls)
    plain = {str(tok.decode(tok(t))):(t,l) for t,l in zip(df.text, df.label)}
    probs,_ = by_hand(learn, df, cols)
    all_losses = sorted((-probs[i,learn.dls.vocab.o2i[l]].log().item() for i,l in enumerate(df.label)), reverse=True)
    ClassificationInterpretation.from_learner(learn).plot_top_losses(4, trunc_at=10_000)
    (table,) = shown
    assert len(table)==4
    for r,expected in zip(table, all_losses):
        t,label = plain[html.unescape(r['text'])]
        with torch.no_grad(): p = learn.model.eval()(batch(tok, [t])).softmax(1)[0]
        assert r['target']==label and r['predicted']==learn.dls.vocab[int(p.argmax())] and abs(float(r['probability'])-p.max())<1e-4
        assert abs(float(r['loss'])+p[learn.dls.vocab.o2i[label]].log())<1e-3 and abs(float(r['loss'])-expected)<1e-3

def test_plot_top_losses_shows_more_rows_than_a_batch_has(rows, shown):
    ClassificationInterpretation.from_learner(rows[0]).plot_top_losses(5)
    assert len(shown[0])==5

def test_show_results_shows_each_text_with_its_own_prediction(rows, shown):
    learn,df,cols = rows
    if not isinstance(cols, str): pytest.skip('a pair is shown as one text')
    tok = tokenizer_of(learn.dls)
    plain = {str(tok.decode(tok(t))):(t,l) for t,l in zip(df.text, df.label)}
    learn.show_results(max_n=4, trunc_at=10_000)
    (table,) = shown
    for r in table:
        t,label = plain[html.unescape(r['text'])]
        assert r['target']==label and r['predicted']==learn.predict(t)[0]

def test_confusion_matrix_counts_every_row(rows):
    learn,df,cols = rows
    pred,y = learn.get_preds()
    cm = ClassificationInterpretation.from_learner(learn).confusion_matrix()
    assert cm.sum()==len(df) and cm.trace()==int((pred.argmax(1)==y).sum())

# ---- the usual verbs of fastai, one after the other

def learner(**kwargs): return classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), bs=8, device='cpu'), tiny_arch('bert'), precision='fp32', **kwargs)

def test_a_learner_is_where_its_data_are():
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), bs=8, device='meta'), tiny_arch('bert'), precision='fp32')
    assert {p.device.type for p in learn.model.parameters()}=={'meta'} # on a GPU a probe comes before the first fit

def test_a_fit_follows_a_search_for_the_rate(tmp_path):
    for adapt in (noop, add_lora):
        learn = learner()
        adapt(learn.model)
        with learn.no_bar(), learn.no_logging():
            learn.lr_find(show_plot=False, num_it=3)
            learn.fit(1, 1e-3, cbs=Resume(tmp_path/adapt.__name__))
        assert learn.fit(1, 1e-3, cbs=Resume(tmp_path/adapt.__name__)) is None

def test_the_card_has_the_scores_of_the_validation_rows(tmp_path):
    learn = learner()
    with learn.no_bar(), learn.no_logging():
        learn.fit(3, 1e-2)
        learn.validate(ds_idx=0)
        learn.add_cb(SaveModelCallback(monitor='accuracy', fname='best'))
    losses = len(learn.recorder.losses)
    scores = json.loads((learn.to_hf(tmp_path/'o')/'classifier.json').read_text())['scores']
    learn.remove_cbs(SaveModelCallback)
    assert len(learn.recorder.losses)==losses and scores['accuracy']==pytest.approx(float(learn.validate()[1]), abs=1e-4)

def test_a_precision_takes_the_place_of_another():
    learn = learner().to_bf16().to_bf16()
    assert [type(o).__name__ for o in learn.cbs].count('MixedPrecision')==1

def test_accuracy_of_fastai_reads_predicted_tokens():
    dls = lm_dls(tiny_df(), tiny_tok('bert'), seq_len=32, bs=8, device='cpu')
    learn = lm_learner(dls, tiny_arch('bert'), metrics=[accuracy, Perplexity()], precision='fp32')
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert 0<=float(learn.recorder.values[-1][2])<=1

def test_a_head_that_reads_each_token_has_no_probe():
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('gpt2'), bs=8, device='cpu'), tiny_arch('gpt2'), head='hf', precision='fp32')
    with pytest.raises(TypeError, match="head='linear'"): learn.fit_probe()

"Adapters across families and methods: which weights train, that all others stay bitwise unchanged, and that files restore what was trained"
import copy, importlib.util, json, pickle, sys, warnings
import pytest, torch
from fastai.basics import Callback
from fastai.callback.progress import ProgressCallback
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from fastformers.models.adapters import *
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.models.families import block_modules, group_names, layer_groups
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.inference.predictor import from_hf
from fastformers.models.core import HFModel
from fastformers.models.load import ADAPTERS, load_body
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import chain_thaw, gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_families, tiny_tok
from fastformers.callback.compute import cpu_bf16
from fastformers.text.tokenizer import extend_vocab

# one for each kind of module tree: Conv1D, a shared block, no biases, an encoder of two, rows in `family_meta`
families = 'bert gpt2 albert modernbert t5 xlnet fnet funnel xlm'.split()
needs_peft = pytest.mark.skipif(importlib.util.find_spec('peft') is None, reason='peft is an extra')
no_biases = 'modernbert t5'.split()
methods = [add_adapters, bitfit, pytest.param(add_lora, marks=needs_peft)]

def learner(family='bert', seed=0, n=12, **kwargs):
    torch.manual_seed(seed)
    df = tiny_df().iloc[:n].assign(is_valid=[False,False,False,True]*(n//4))
    learn = classifier_learner(classifier_dls(df, tiny_tok(family), bs=kwargs.pop('bs', 4), device='cpu'), kwargs.pop('arch', None) or tiny_arch(family), **kwargs)
    learn.remove_cb(ProgressCallback)
    learn.logger = lambda o: None
    return learn

def weights(model): return {k:v.clone() for k,v in model.state_dict().items()}
def moved(model, old): return {k for k,v in model.state_dict().items() if not torch.equal(v, old[k])}
@torch.no_grad()
def pred(model, x): return model.eval()(x)
def loud(model, std=.3):
    "Set adapters to random numbers, so that they change predictions"
    with torch.no_grad():
        for n,p in model.named_parameters():
            if '.adapter.' in n or 'lora_' in n: p.normal_(std=std)
    return model
def planned(model):
    "Names of the weights that `add_adapters` should train"
    norms = [n for n,m in model.body.named_modules() if 'Norm' in type(m).__name__]
    return {k for k,_ in model.named_parameters() if '.adapter.' in k or k.startswith('head.') or any(k.startswith(f'hf.{n}.') and '.' not in k[len(n)+4:] for n in norms)}

# ---- families x methods

def test_every_family_takes_bottlenecks_and_gives_them_back():
    for family in {*tiny_families}-{'squeezebert'}: # convolutions are refused
        m = HFModel(*load_body(tiny_arch(family)))
        names = list(m.state_dict())
        add_adapters(m, width=4)
        assert sum(isinstance(o, Adapter) for o in m.modules())==2*len(block_modules(m.body)), family
        assert list(remove_adapters(m).state_dict())==names

@pytest.mark.parametrize('family', families)
def test_only_adapters_and_norms_train(family):
    learn = learner(family)
    m,x = learn.model,learn.dls.train.one_batch()[0]
    n_blocks,names,before,old = len(block_modules(m.body)),group_names(m),pred(m, x),weights(m)
    assert add_adapters(m, width=4) is m
    assert torch.equal(pred(m, x), before)                           # a fresh adapter changes nothing
    adapters = {n:o for n,o in m.named_modules() if isinstance(o, Adapter)}
    assert len(adapters)==2*n_blocks and set(old)<=set(m.state_dict())
    groups,mine = layer_groups(m),group_names(m)
    assert [o for o in names if o in mine]==mine and set(names)-set(mine)<={'embeddings'}
    name = {id(p):n for n,p in m.named_parameters()}
    for g,ps in zip(mine, groups):
        owns = [name[id(p)] for p in ps if '.adapter.' in name[id(p)]]
        assert len(owns)==(8 if g.startswith('block') else 0), g
    assert {name[id(p)] for g in groups for p in g}=={n for n,p in m.named_parameters() if p.requires_grad}==planned(m)
    for a in adapters.values():                                      # each is on the way of the signal
        keep = a.up.bias.clone()
        with torch.no_grad():
            a.up.bias.normal_()
            assert not torch.allclose(pred(m, x), before, atol=1e-5)
            a.up.bias.copy_(keep)
    loud(m)
    learn.fit(1, lr=1e-2)                                            # gradients reach all that is planned, and nothing else
    still = {k for k in planned(m) if k in old and torch.equal(m.state_dict()[k], old[k])}
    assert {k for k in moved(m, {**weights(m), **old}) if k in old}<=planned(m) and not still-{k for k in planned(m) if 'norm' not in k.lower()}, still
    assert all(p.grad is None for n,p in m.named_parameters() if n not in planned(m))
    remove_adapters(m)
    assert list(m.state_dict())==list(old) and all(p.requires_grad for p in m.parameters()) and group_names(m)==names
    with torch.no_grad(): m.load_state_dict(old)
    assert torch.equal(pred(m, x), before)                           # no hook is left behind

@pytest.mark.parametrize('family', families)
def test_only_biases_train(family):
    learn = learner(family)
    if family in no_biases:
        with pytest.raises(ValueError, match='no biases'): bitfit(learn.model)
        return
    old = weights(bitfit(learn.model))
    learn.fit(1, lr=1e-2)
    assert all(k.endswith('bias') or k.startswith('head.') for k in moved(learn.model, old))
    assert any(k.endswith('bias') and k.startswith('hf.') for k in moved(learn.model, old))

@needs_peft
@pytest.mark.parametrize('family', families)
def test_lora_is_added_written_and_removed(family):
    learn = learner(family)
    m,x = learn.model,learn.dls.train.one_batch()[0]
    before,old,attrs = pred(m, x),weights(m),{**vars(m.body)}
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)                  # matrices that are kept transposed are known as such
        add_lora(m, r=2)
    assert (pred(m, x)-before).abs().max()<1e-6
    few = {n for n,p in m.named_parameters() if p.requires_grad}
    assert few=={n for n,_ in m.named_parameters() if 'lora_' in n or n.startswith('head.')} and any('lora_' in n for n in few)
    assert group_names(m)==[*(f'block {i+1}' for i in range(len(block_modules(m.body)))), 'head']
    loud(m, .1)                                                      # more would let rounding grow from block to block
    apart = pred(m, x)
    assert (apart-before).abs().max()>1e-3
    written,merged = plain_state(m.body),remove_adapters(copy.deepcopy(m))
    merged.body.load_state_dict(written)
    assert list(merged.state_dict())==list(old) and (pred(merged, x)-apart).abs().max()<1e-5*max(1., float(apart.abs().max()))
    remove_adapters(m)
    assert list(m.state_dict())==list(old) and not moved(m, old) and torch.equal(pred(m, x), before)
    assert vars(m.body).keys()==attrs.keys() and all(p.requires_grad for p in m.parameters())

# ---- frozen weights stay frozen

def freeze_by_hand(learn):
    for i in (1,2,3): learn.freeze_to(-i); learn.fit(1, lr=1e-2)
def unfreeze_all(learn): learn.freeze(); learn.fit(1, lr=1e-2); learn.unfreeze(); learn.fit_one_cycle(1, 1e-2)
def thaw(learn): learn.fit_schedule(chain_thaw, lr=1e-2, epochs=6); learn.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5, reset_opt=True)

@pytest.mark.parametrize('train', [freeze_by_hand, unfreeze_all, thaw])
@pytest.mark.parametrize('method', methods)
def test_only_what_is_planned_moves(method, train):
    learn = learner(wd=.1)
    old = weights(method(learn.model))
    own = {add_adapters:planned(learn.model).__contains__, bitfit:lambda n: n.endswith('bias'), add_lora:lambda n: 'lora_' in n}[method]
    few = {n for n,_ in learn.model.named_parameters() if own(n) or n.startswith('head.')}
    train(learn)
    gone = moved(learn.model, old)
    assert gone<=few and any(k.startswith('hf.') for k in gone) and any(k.startswith('head.') for k in gone)

def test_a_schedule_opens_adapters_with_their_block():
    learn = learner()
    old = weights(add_adapters(learn.model))
    learn.freeze_to(-2); learn.fit(2, lr=1e-2)
    assert {k.split('.')[3] for k in moved(learn.model, old) if k.startswith('hf.')}=={'2'}

@pytest.mark.parametrize('method', [add_adapters, pytest.param(add_lora, marks=needs_peft)])
def test_an_optimizer_from_before_is_not_used(method):
    learn = learner()
    learn.fit(1, lr=1e-2)
    old = weights(method(learn.model))
    for f in (lambda: learn.fit(1, lr=1e-2), lambda: learn.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5)):
        with pytest.raises(ValueError, match='learn.opt = None'): f()
    assert not moved(learn.model, old)
    learn.opt = None
    learn.unfreeze(); learn.fit(1, lr=1e-2)
    assert any('.adapter.' in k or 'lora_' in k for k in moved(learn.model, old)) and not any('word_embeddings' in k for k in moved(learn.model, old))

@pytest.mark.parametrize('method,cbs', [(add_adapters,None), (add_adapters,cpu_bf16(enabled=True)), (bitfit,None),
                                        pytest.param(add_lora, cpu_bf16(enabled=True), marks=needs_peft)])
def test_a_few_weights_learn(method, cbs):
    learn = learner(drop_mult=0., cbs=cbs, bs=16)                    # one batch an epoch
    method(learn.model)
    x,y = learn.dls.train.one_batch()
    assert float(learn.loss_func(pred(learn.model, x), y))>1
    learn.fit(30, lr=3e-3)
    assert float(learn.loss_func(pred(learn.model, x), y))<.3 and all(o==o for o in learn.recorder.losses)

def test_weights_that_were_not_loaded_train(tmp_path, deeper):
    learner().save_encoder(tmp_path/'cl')
    model = learner(arch=deeper(tmp_path/'cl')).model
    names = {n for n,p in bitfit(model).named_parameters() if p.requires_grad}
    top = {n for n,_ in model.named_parameters() if 'layer.3.' in n}
    assert top and top<=names and not any(n.endswith('weight') for n in names-top if n.startswith('hf.'))
    assert model.loaded.loaded+len(model.loaded.new)==len(model.body.state_dict())
    hf = learner(arch=tmp_path/'cl', head='hf').model                # a checkpoint without a pooler
    assert {n for n,p in train_only(hf, lambda n,p: False).named_parameters() if p.requires_grad}=={n for n,_ in hf.named_parameters() if 'pooler' in n or 'classifier' in n}

@pytest.mark.parametrize('method', methods)
def test_new_tokens_that_stay_frozen_are_named(method, tmp_path, caplog):
    learner(arch=tiny_arch('bert', vocab_size=len(tiny_tok()))).save_encoder(tmp_path/'cl')
    tok = extend_vocab(tiny_tok(), ['drug1x','drug2x'])
    dls = classifier_dls(tiny_df(), tok, bs=8, device='cpu')
    method(classifier_learner(dls, tmp_path/'cl').model)
    assert 'the embeddings of 2 new tokens stay frozen' in caplog.text
    classifier_learner(dls, tmp_path/'cl').save_encoder(tmp_path/'more')  # a stage that trained them
    caplog.clear()
    method(classifier_learner(dls, tmp_path/'more').model)
    assert 'new tokens' not in caplog.text

# ---- other models

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_a_language_model_learns_by_adapters_and_hands_them_over(family, tmp_path, caplog):
    torch.manual_seed(0)
    obj = (MLM if family=='bert' else CLM)(tiny_tok(family))
    lm = lm_learner(lm_dls(tiny_df(), obj.tok, obj, bs=8, seq_len=32, device='cpu'), tiny_arch(family))
    lm.remove_cb(ProgressCallback); lm.logger = lambda o: None
    old = weights(add_adapters(lm.model, width=4))
    lm.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5)
    assert not any('embeddings.word' in k or 'wte' in k or 'query' in k or 'c_attn' in k for k in moved(lm.model, old))
    save_adapters(lm.model, tmp_path/'lm.safetensors')
    x = lm.dls.valid.one_batch()[0]
    assert torch.equal(pred(lm_learner(lm.dls, lm.save_encoder(tmp_path/'lm')).model, x), pred(lm.model, x))
    clf = learner(family).model
    clf.body.load_state_dict({k:v for k,v in lm.model.body.state_dict().items() if '.adapter.' not in k})
    head = weights(clf.head)
    load_adapters(clf, tmp_path/'lm.safetensors')
    assert not moved(clf.head, head)
    a,b = lm.model.body.state_dict(),clf.body.state_dict()
    assert a.keys()==b.keys() and all(torch.equal(v, b[k]) for k,v in a.items())
    assert 'other frozen weights' not in caplog.text

# ---- copies, pickles, Resume

@pytest.mark.parametrize('method', methods)
def test_copies_and_pickles_keep_everything(method, tmp_path):
    m = loud(method(learner().model))
    x = learner().dls.train.one_batch()[0]
    want = pred(m, x)
    torch.save(m, tmp_path/'m.pth')
    for o in (copy.deepcopy(m), pickle.loads(pickle.dumps(m)), torch.load(tmp_path/'m.pth', weights_only=False)):
        assert torch.equal(pred(o, x), want) and group_names(o)==group_names(m)
        assert len(list(remove_adapters(o).state_dict()))<=len(m.state_dict()) and torch.equal(pred(m, x), want)

@pytest.mark.parametrize('method', methods)
def test_a_stopped_run_with_adapters_goes_on(method, tmp_path):
    class Accident(Callback):
        order = 2000
        def after_batch(self):
            if self.training and self.train_iter==4: raise KeyboardInterrupt()
    def train(path, *cbs):
        learn = learner(cbs=[Resume(path, every=1), *cbs])
        method(learn.model)
        try: learn.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5)
        except KeyboardInterrupt: pass
        return learn
    whole = train(tmp_path/'a')
    train(tmp_path/'b', Accident())
    assert not moved(train(tmp_path/'b').model, weights(whole.model))

def test_a_learner_saves_loads_and_exports(tmp_path):
    learn = learner(path=tmp_path)
    add_adapters(learn.model); learn.fit(1, lr=1e-2)
    want = weights(learn.model)
    learn.save('here'); learn.fit(1, lr=1e-2); assert moved(learn.model, want)
    learn.load('here'); assert not moved(learn.model, want)

# ---- files

@pytest.mark.parametrize('method', methods)
def test_files_restore_what_was_trained(method, tmp_path):
    learn = learner()
    loud(method(learn.model)); learn.fit(2, lr=1e-2)
    x = learn.dls.train.one_batch()[0]
    want,path = pred(learn.model, x),save_adapters(learn.model, tmp_path/'deep/a.safetensors')
    assert [o.name for o in path.parent.iterdir()]==['a.safetensors']
    again = learner().model                                          # the same random base
    assert load_adapters(again, path) is again and torch.equal(pred(again, x), want)
    assert group_names(again)==group_names(learn.model)
    assert {n for n,p in again.named_parameters() if p.requires_grad}=={n for g in [layer_groups(again)] for n,p in again.named_parameters() if any(p is q for ps in g for q in ps)}
    loud(again); assert torch.equal(pred(load_adapters(again, path), x), want)   # into a model adapted alike
    small = sum(p.numel() for g in layer_groups(again) for p in g)*4
    assert path.stat().st_size<small+20000

def test_two_tasks_share_one_network(tmp_path):
    a,b = learner(),learner(n=24)
    for l,o in ((a,'a'),(b,'b')): add_adapters(l.model); l.fit(2, lr=1e-2); save_adapters(l.model, tmp_path/f'{o}.safetensors')
    one,x = learner().model,a.dls.train.one_batch()[0]
    for l,o in ((a,'a'),(b,'b'),(a,'a')): assert torch.equal(pred(load_adapters(one, tmp_path/f'{o}.safetensors'), x), pred(l.model, x))

def test_a_head_for_other_labels_is_refused(tmp_path):
    a,df = learner(),tiny_df().iloc[:12]
    add_adapters(a.model)
    df = df.assign(label=df.label.str.upper(), is_valid=[False,False,False,True]*3)
    b = classifier_learner(classifier_dls(df, tiny_tok('bert'), bs=4, device='cpu'), tiny_arch('bert'))
    old = weights(b.model)
    with pytest.raises(ValueError, match='labels is'): load_adapters(b.model, save_adapters(a.model, tmp_path/'a.safetensors'))
    assert b.model.adapters is None and not moved(b.model, old)
    head = weights(b.model.head)
    load_adapters(b.model, save_adapters(a.model, tmp_path/'a.safetensors', head=False))
    there = weights(a.model)
    assert not [k for k in moved(b.model, there) if '.adapter.' in k] and not moved(b.model.head, head)

# ---- errors

def test_without_peft_a_model_stays_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, 'peft', None)
    m = learner().model
    old = list(m.state_dict())
    with pytest.raises(ImportError, match='peft'): add_lora(m)
    assert list(m.state_dict())==old and m.adapters is None

def test_an_optimizer_from_before_adapters_were_removed_is_refused():
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), device='cpu'), tiny_arch('bert'))
    add_adapters(learn.model)
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        remove_adapters(learn.model)
        learn.validate(); learn.predict('A text.') # need no optimizer
        for _ in range(2):
            with pytest.raises(ValueError, match='learn.opt = None'): learn.fit(1) # it would train a part only
        learn.opt = None
        learn.fit(1)

# ---- save, load and predict like any other classifier

odd = ['A fine film.', '', 'no', 'x '*200, '[SEP] \N{PILE OF POO} <pad>']
few = ['bert', 'gpt2', 'deberta-v2', 'modernbert']                    # the last has no biases

def wanted(learn, texts=odd): return learn.get_preds(dl=learn.dls.test_dl(texts))[0]
def gap(a, b): return float((a-b).abs().max())

def adapted(method, family='bert', **kwargs):
    "A learner with non-zero adapters, after an epoch of training"
    learn = learner(family, **kwargs)
    loud(method(learn.model), .1)
    learn.fit(1, lr=1e-2)
    return learn

@pytest.mark.exact
def test_predictors_give_the_learners_scores(tmp_path, without_fastai):
    want = {}
    for method in [add_adapters, bitfit, *([add_lora] if importlib.util.find_spec('peft') else [])]:
        for family in [o for o in few if method is not bitfit or o not in no_biases]:
            learn = adapted(method, family)
            old,trains = weights(learn.model),{n for n,p in learn.model.named_parameters() if p.requires_grad}
            path = learn.to_hf(tmp_path/f'{family}-{method.__name__}')
            assert not moved(learn.model, old) and weights(learn.model).keys()==old.keys() # writing changes nothing
            assert {n for n,p in learn.model.named_parameters() if p.requires_grad}==trains
            assert (path/ADAPTERS).is_file()==(method is add_adapters)
            assert not AutoModel.from_pretrained(path, output_loading_info=True)[1]['unexpected_keys']
            want[path.name] = wanted(learn)
            assert want[path.name].std(0).max()>1e-3                  # texts get different scores
    code = "import sys, torch\nfrom fastformers.inference.predictor import from_hf\n" \
           f"torch.save({{o:from_hf({str(tmp_path)!r}+'/'+o, device='cpu').scores({odd!r}) for o in {list(want)}}}, {str(tmp_path/'scores.pt')!r})\n" \
           "sys.exit('fastai' in sys.modules or 'peft' in sys.modules)"
    without_fastai(code)
    for o,got in torch.load(tmp_path/'scores.pt').items(): assert gap(got, want[o])<1e-5, o

@pytest.mark.parametrize('family', families)
def test_bottlenecks_are_saved_and_loaded_with_the_model(family, tmp_path):
    learn = learner(family)
    loud(add_adapters(learn.model, width=4))
    p,x = from_hf(learn.save_encoder(tmp_path/'o'), device='cpu'),learn.dls.train.one_batch()[0]
    assert gap(pred(p.model, x), pred(learn.model, x))<1e-5
    assert not moved(p.model, weights(learn.model))

@pytest.mark.exact
@pytest.mark.parametrize('method', methods)
def test_hugging_face_s_own_head(method, tmp_path):
    learn = adapted(method, head='hf')
    path,want = learn.to_hf(tmp_path/'clf'),wanted(learn)
    assert gap(from_hf(path, device='cpu').scores(odd), want)<1e-5
    again = classifier_learner(learn.dls, path, head='hf')
    assert gap(wanted(again), want)<1e-5
    assert not AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)[1]['unexpected_keys']
    assert (path/ADAPTERS).is_file()==(method is add_adapters)

def test_what_automodel_reads_is_the_network_without_adapters(tmp_path):
    learn = adapted(add_adapters)
    path = learn.to_hf(tmp_path/'clf')
    x,body = learn.dls.train.one_batch()[0],AutoModel.from_pretrained(path).eval()
    m = learn.model.eval()
    with torch.no_grad():
        inputs = m.model_inputs(x)
        assert gap(body(**inputs)[0], m.body(**inputs)[0])>1e-2
        assert gap(body(**inputs)[0], remove_adapters(m).body(**inputs)[0])<1e-5    # norms and biases as trained

@pytest.mark.exact
def test_a_learner_goes_on_with_adapters_and_head(tmp_path, caplog):
    learn = adapted(add_adapters)
    again = classifier_learner(learn.dls, learn.save_encoder(tmp_path/'o'))
    assert 'has adapters' in caplog.text and 'other frozen weights' not in caplog.text
    assert not moved(again.model, weights(learn.model)) and group_names(again.model)==group_names(learn.model)
    assert {n for n,p in again.model.named_parameters() if p.requires_grad}=={n for n,p in learn.model.named_parameters() if p.requires_grad}
    old = weights(again.model)
    with again.no_bar(), again.no_logging(): again.fit(1, lr=1e-2)
    gone = moved(again.model, old)
    assert any('.adapter.' in k for k in gone) and not any('query' in k or 'word_emb' in k for k in gone)
    for i in range(2): assert gap(from_hf(again.save_encoder(tmp_path/'o'), device='cpu').scores(odd), wanted(again))<1e-5 # over the old one

def test_another_task_gets_the_adapters_and_a_new_head(tmp_path):
    path = adapted(add_adapters).save_encoder(tmp_path/'o')
    df = tiny_df().iloc[:12].assign(label=lambda d: d.label.map(str.upper), is_valid=[False,False,False,True]*3)
    new = classifier_learner(classifier_dls(df, tiny_tok('bert'), bs=4, device='cpu'), path)
    there = from_hf(path, device='cpu').model
    assert not moved(new.model.body, weights(there.body)) and moved(new.model.head, weights(there.head))

@pytest.mark.parametrize('first,then', [(None,'hf'), ('hf',None)])
def test_adapters_go_from_one_kind_of_head_to_the_other(first, then, tmp_path, caplog):
    # a checkpoint without a pooler: the pooler of Hugging Face's head starts new, and trains
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'lm'); tiny_tok('bert').save_pretrained(tmp_path/'lm')
    for start in (tmp_path/'lm', None):
        a = adapted(add_adapters, head=first, **({'arch':start} if start else {}))
        caplog.clear()
        b = classifier_learner(a.dls, a.save_encoder(tmp_path/'o'), head=then)
        old,new = weights(a.model.body),weights(b.model.body)
        assert 'other frozen weights' not in caplog.text and any('.adapter.' in k for k in new)
        assert all(torch.equal(new[k], old[k]) for k in new.keys()&old.keys()) and all('pooler' in k for k in new.keys()^old.keys())

def test_load_encoder_takes_adapters_along(tmp_path, caplog):
    for head in (None, 'hf'):
        a = adapted(add_adapters, head=head)
        path = a.save_encoder(tmp_path/'o')
        for f in (lambda m: m, lambda m: add_adapters(m)):
            b = learner(seed=1, head=head)
            f(b.model)
            mine = {k:v for k,v in weights(b.model).items() if not k.startswith(('hf.embeddings','hf.encoder','hf.bert'))}
            caplog.clear()
            b.load_encoder(path)
            assert not [k for k in moved(b.model.body, weights(a.model.body)) if 'pooler' not in k] and not mine.keys()&moved(b.model, {**weights(b.model), **mine}) and 'other frozen weights' not in caplog.text
            b.fit(1, lr=1e-2)

@pytest.mark.parametrize('method', methods)
def test_load_encoder_refuses_other_adapters(method, tmp_path):
    plain,path = learner().save_encoder(tmp_path/'plain'),adapted(add_adapters).save_encoder(tmp_path/'o')
    for there in (plain, path):
        b = learner(seed=1)
        add_adapters(b.model, width=8) if method is add_adapters else method(b.model)
        old = weights(b.model)
        with pytest.raises(ValueError, match='remove_adapters|another model'): b.load_encoder(there)
        assert weights(b.model).keys()==old.keys() and (there==path or not moved(b.model, old))

@pytest.mark.exact
@needs_peft
def test_a_language_model_with_lora_is_written_merged(tmp_path):
    lm = lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), bs=8, seq_len=32, device='cpu'), tiny_arch('bert'))
    loud(add_lora(lm.model), .1)
    old = weights(lm.model)
    path,x = lm.to_hf(tmp_path/'lm'),lm.dls.valid.one_batch()[0]
    assert not moved(lm.model, old)
    again = lm_learner(lm.dls, path)
    assert gap(pred(again.model, x), pred(lm.model, x))<1e-5 and not again.model.loaded.new and not again.model.loaded.dropped
    assert classifier_learner(learner().dls, path).model.adapters is None


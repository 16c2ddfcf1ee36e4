"Few weights train, in every family: which they are, that the others stay bit by bit what they were, and that what was trained comes back from its file"
import copy, importlib.util, json, pickle, subprocess, sys, warnings
import pytest, torch
from fastai.basics import Callback
from fastai.callback.progress import ProgressCallback
from transformers import AutoModel, AutoModelForMaskedLM
from fastformers.models.adapters import *
from fastformers.models.adapters import load_adapters, save_adapters
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.models.families import block_modules, group_names, layer_groups
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.load import _from_pretrained, load_body
from fastformers.models.core import TextClassifier
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import chain_thaw, gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_families, tiny_tok
from fastformers.callback.compute import cpu_bf16

everyone = list(tiny_families)
needs_peft = pytest.mark.skipif(importlib.util.find_spec('peft') is None, reason='peft is an extra')
no_biases = 'modernbert eurobert llama mistral gemma t5 mt5 umt5'.split()
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
    "Adapters that do something"
    with torch.no_grad():
        for n,p in model.named_parameters():
            if '.adapter.' in n or 'lora_' in n: p.normal_(std=std)
    return model
def planned(model):
    "What add_adapters trains, found in another way than its own"
    norms = [n for n,m in model.body.named_modules() if 'Norm' in type(m).__name__]
    return {k for k,_ in model.named_parameters() if '.adapter.' in k or k.startswith('head.') or any(k.startswith(f'body.{n}.') and '.' not in k[len(n)+6:] for n in norms)}

# ---- every family

@pytest.mark.parametrize('family', everyone)
def test_bottlenecks_in_every_family(family):
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

@pytest.mark.parametrize('family', everyone)
def test_biases_in_every_family(family):
    learn = learner(family)
    if family in no_biases:
        with pytest.raises(ValueError, match='no biases'): bitfit(learn.model)
        return
    old = weights(bitfit(learn.model))
    learn.fit(1, lr=1e-2)
    assert all(k.endswith('bias') or k.startswith('head.') for k in moved(learn.model, old))
    assert any(k.endswith('bias') and k.startswith('body.') for k in moved(learn.model, old))

@needs_peft
@pytest.mark.parametrize('family', everyone)
def test_lora_in_every_family(family):
    learn = learner(family)
    m,x = learn.model,learn.dls.train.one_batch()[0]
    if family=='squeezebert':                                        # convolutions in groups, which peft cannot merge
        with pytest.raises(ValueError, match='no linear projection'): add_lora(m)
        return
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
    merged = merge_adapters(copy.deepcopy(m))
    assert list(merged.state_dict())==list(old) and (pred(merged, x)-apart).abs().max()<1e-5*max(1., float(apart.abs().max()))
    remove_adapters(m)
    assert list(m.state_dict())==list(old) and not moved(m, old) and torch.equal(pred(m, x), before)
    assert vars(m.body).keys()==attrs.keys() and all(p.requires_grad for p in m.parameters())

@pytest.mark.parametrize('family', everyone)
def test_new_top_layers_are_drawn_as_the_family_draws_them(family):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family))[0]
    n = len(block_modules(body))
    with torch.no_grad():
        for p in body.parameters(): p.fill_(7.)
    reinit_layers(body, 1)
    fresh = load_body(tiny_arch(family))[0]
    top = {id(p) for m in block_modules(body)[-1] for p in m.parameters()} | ({id(p) for p in body.pooler.parameters()} if getattr(body, 'pooler', None) else set())
    for (k,p),q in zip(body.named_parameters(), fresh.parameters()):
        if id(p) not in top: assert (p==7).all(), k
        elif float(q.detach().std(correction=0))==0: assert torch.equal(p, q), k                       # norms, biases
        else: assert (p!=7).all() and .7<float(p.detach().std()/q.detach().std())<1.5 and float(p.detach().abs().max())<6, k
    with pytest.raises(ValueError, match=f'1 to {n}'): reinit_layers(body, n+1)
    with pytest.raises(ValueError, match='got 0'): reinit_layers(body, 0)

# ---- what is frozen stays frozen

def freeze_by_hand(learn):
    for i in (1,2,3): learn.freeze_to(-i); learn.fit(1, lr=1e-2)
def unfreeze_all(learn): learn.freeze(); learn.fit(1, lr=1e-2); learn.unfreeze(); learn.fit_one_cycle(1, 1e-2)
def by_schedule(learn): learn.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5, discr=1.5)
def thaw(learn): learn.fit_schedule(chain_thaw, lr=1e-2, epochs=6); learn.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5, reset_opt=True)

@pytest.mark.parametrize('train', [freeze_by_hand, unfreeze_all, by_schedule, thaw])
@pytest.mark.parametrize('method', methods)
def test_only_what_is_planned_moves(method, train):
    learn = learner(wd=.1)
    old = weights(method(learn.model))
    own = {add_adapters:planned(learn.model).__contains__, bitfit:lambda n: n.endswith('bias'), add_lora:lambda n: 'lora_' in n}[method]
    few = {n for n,_ in learn.model.named_parameters() if own(n) or n.startswith('head.')}
    train(learn)
    gone = moved(learn.model, old)
    assert gone<=few and any(k.startswith('body.') for k in gone) and any(k.startswith('head.') for k in gone)

def test_a_schedule_opens_adapters_with_their_block():
    learn = learner()
    old = weights(add_adapters(learn.model))
    learn.freeze_to(-2); learn.fit(2, lr=1e-2)
    assert {k.split('.')[3] for k in moved(learn.model, old) if k.startswith('body.')}=={'2'}

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

@pytest.mark.parametrize('cbs', [None, cpu_bf16(enabled=True)])
@pytest.mark.parametrize('method', methods)
def test_a_few_weights_learn(method, cbs):
    learn = learner(drop_mult=0., cbs=cbs, bs=16)                    # one batch an epoch
    method(learn.model)
    x,y = learn.dls.train.one_batch()
    assert float(learn.loss_func(pred(learn.model, x), y))>1
    learn.fit(30, lr=3e-3)
    assert float(learn.loss_func(pred(learn.model, x), y))<.3 and all(o==o for o in learn.recorder.losses)

def test_fresh_adapters_change_nothing_in_bfloat16():
    learn = learner()
    x = learn.dls.train.one_batch()[0]
    with torch.autocast('cpu', dtype=torch.bfloat16): before = pred(learn.model, x); after = pred(add_adapters(learn.model), x)
    assert torch.equal(before, after)
    body = add_adapters(load_body(tiny_arch('bert'), dtype='bfloat16'))
    assert {p.dtype for p in body.parameters()}=={torch.bfloat16}

def test_weights_that_were_not_loaded_train(tmp_path):
    learner().save_encoder(tmp_path/'cl')
    reinit = reinit_layers(learner(arch=tmp_path/'cl').model, 1)
    names = {n for n,p in bitfit(reinit).named_parameters() if p.requires_grad}
    top = {n for n,_ in reinit.named_parameters() if 'layer.2.' in n}
    assert top and top<=names and not any(n.endswith('weight') for n in names-top if n.startswith('body.'))
    assert reinit.loaded.loaded+len(reinit.loaded.new)==len(reinit.body.state_dict())
    hf = learner(arch=tmp_path/'cl', head='hf').model                # a checkpoint without a pooler
    assert {n for n,p in train_only(hf, lambda n,p: False).named_parameters() if p.requires_grad}=={n for n,_ in hf.named_parameters() if 'pooler' in n or 'classifier' in n}

def test_a_body_adapted_before_its_learner_is_understood():
    m = learner().model
    other = TextClassifier(add_adapters(load_body(tiny_arch('bert'))), m.head)
    assert group_names(other)==['embeddings','block 1','block 2','block 3','head'] and {n for n,p in other.named_parameters() if p.requires_grad}==planned(other)

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
    with pytest.raises(ValueError, match='save_adapters'): lm.save_encoder(tmp_path/'lm')
    assert not (tmp_path/'lm').exists()
    save_adapters(lm.model, tmp_path/'lm.safetensors')
    clf = learner(family).model
    clf.body.load_state_dict({k:v for k,v in lm.model.body.state_dict().items() if '.adapter.' not in k})
    head = weights(clf.head)
    load_adapters(clf, tmp_path/'lm.safetensors')
    assert not moved(clf.head, head)
    a,b = lm.model.body.state_dict(),clf.body.state_dict()
    assert a.keys()==b.keys() and all(torch.equal(v, b[k]) for k,v in a.items())
    assert 'other weights' not in caplog.text

def test_huggingface_s_own_head(tmp_path):
    learn = learner(head='hf')
    old = weights(add_adapters(learn.model))
    learn.fit(1, lr=1e-2)
    assert any('classifier' in k for k in moved(learn.model, old)) and not any('query' in k for k in moved(learn.model, old))
    x = learn.dls.train.one_batch()[0]
    want,path = pred(learn.model, x),save_adapters(learn.model, tmp_path/'a.safetensors')
    again = learner(head='hf').model
    assert torch.equal(pred(load_adapters(again, path), x), want)

def test_a_bare_model_of_transformers(tmp_path):
    hf = AutoModelForMaskedLM.from_config(tiny_arch('bert'))
    add_adapters(hf)
    few = {n for n,p in hf.named_parameters() if p.requires_grad}
    assert any('.adapter.' in n for n in few) and 'cls.predictions.bias' in few and not any('word_embeddings' in n for n in few)
    for o in (hf, hf.base_model):
        with pytest.raises(ValueError, match='save_adapters'): o.save_pretrained(tmp_path/'x')
    remove_adapters(hf).save_pretrained(tmp_path/'x')
    assert not AutoModelForMaskedLM.from_pretrained(tmp_path/'x', output_loading_info=True)[1]['unexpected_keys']

# ---- what goes on around it

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
def test_files_bring_back_what_was_trained(method, tmp_path):
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

def test_a_hand_made_choice_is_saved_too(tmp_path):
    learn = learner()
    train_only(learn.model, lambda n,p: 'LayerNorm' in n); learn.fit(1, lr=1e-2)
    save_adapters(learn.model, tmp_path/'n.safetensors')
    x = learn.dls.train.one_batch()[0]
    assert torch.equal(pred(load_adapters(learner().model, tmp_path/'n.safetensors'), x), pred(learn.model, x))

def test_files_for_something_else_are_refused_and_change_nothing(tmp_path, caplog):
    path = save_adapters(add_adapters(learner().model, width=4), tmp_path/'a.safetensors')
    def refused(model, match):
        old,groups = weights(model),group_names(model)
        with pytest.raises(ValueError, match=match): load_adapters(model, path)
        assert model.state_dict().keys()==old.keys() and not moved(model, old) and group_names(model)==groups
    refused(learner('roberta').model, 'family is bert there, roberta here')
    refused(learner(arch=tiny_arch('bert', num_hidden_layers=2)).model, 'blocks is 3 there, 2 here')
    refused(learner(arch=tiny_arch('bert', hidden_size=64)).model, 'hidden size is 32 there, 64 here')
    refused(bitfit(learner().model), 'went through bitfit')
    refused(add_adapters(learner().model, width=8), 'remove_adapters')
    two = classifier_learner(classifier_dls(tiny_df().query('label!="neutral"'), tiny_tok('bert'), bs=4), tiny_arch('bert')).model
    refused(two, 'head is single label classification: negative, neutral, positive there, single label classification: negative, positive here')
    other = tiny_df().assign(label=lambda o: o.label.map(dict(negative='z', neutral='b', positive='c'))) # as many, in another order too
    refused(classifier_learner(classifier_dls(other, tiny_tok('bert'), bs=4), tiny_arch('bert')).model, 'single label classification: b, c, z here')
    refused(classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), bs=4), tiny_arch('bert'), pool='mean').model, r'is \(96,\) there, \(32,\) here')
    assert 'other weights' not in caplog.text
    load_adapters(learner(seed=1).model, path)
    assert 'other weights' in caplog.text

def test_the_labels_of_adapters_are_those_of_the_head(tmp_path):
    "Whatever the checkpoint told apart, whoever made the loss, whatever the number is called"
    def make(arch='bert', loss=None, **columns):
        df = tiny_df().assign(**columns)
        return classifier_learner(classifier_dls(df, tiny_tok('bert'), label_col=[*columns, 'label'][0], bs=4), tiny_arch('bert') if arch=='bert' else arch, loss_func=loss)
    stage = make().save_encoder(tmp_path/'stage')
    two = tiny_df().label.map(dict(negative='a', neutral='b', positive='b'))
    a,b = (make(stage, loss, other=two) for loss in (None, torch.nn.CrossEntropyLoss()))
    for x,y in ((a,b), (b,a)): load_adapters(y.model, save_adapters(add_adapters(x.model, width=4), tmp_path/'two')); remove_adapters(x.model); remove_adapters(y.model)
    three = save_adapters(add_adapters(make().model, width=4), tmp_path/'three')
    with pytest.raises(ValueError, match='single label classification: b, c, z here'):
        load_adapters(make(stage, torch.nn.CrossEntropyLoss(), other=tiny_df().label.map(dict(negative='z', neutral='b', positive='c'))).model, three)
    stars,rating = (make(**{k:tiny_df().text.str.len()/10}) for k in ('stars','rating'))
    load_adapters(rating.model, save_adapters(add_adapters(stars.model, width=4), tmp_path/'stars'))

@pytest.mark.parametrize('spoil', ['cut','empty','text','plain','format','missing','folder'])
def test_damaged_files_are_said_in_a_sentence(spoil, tmp_path):
    from safetensors.torch import save_file
    path = save_adapters(add_adapters(learner().model), tmp_path/'a.safetensors')
    if spoil=='cut': path.write_bytes(path.read_bytes()[:-5])
    if spoil=='empty': path.write_bytes(b'')
    if spoil=='text': path.write_text('{"a": 1} '*99)
    if spoil=='plain': save_file({'a':torch.zeros(2)}, path)
    if spoil=='format': save_file({'a':torch.zeros(2)}, path, metadata={'fastformers':json.dumps({'format':2})})
    if spoil=='missing': path.unlink()
    if spoil=='folder': path.unlink(); path.mkdir()
    with pytest.raises((ValueError,FileNotFoundError), match='damaged|not written by|no file') as e: load_adapters(learner().model, path)
    assert str(path) in str(e.value)

def test_a_killed_write_leaves_the_old_file(tmp_path, monkeypatch):
    from fastformers.models import adapters_files
    m = add_adapters(learner().model)
    path = save_adapters(m, tmp_path/'a.safetensors')
    old = path.read_bytes()
    def half(tensors, f, **kwargs): f.write_bytes(b'half'); raise OSError(28, 'No space left on device')
    monkeypatch.setattr(adapters_files, 'save_file', half)
    with pytest.raises(OSError, match='No space left'): save_adapters(loud(m), path)
    assert path.read_bytes()==old and [o.name for o in tmp_path.iterdir()]==['a.safetensors']

# ---- at the door

def test_what_cannot_be_done_is_said():
    with pytest.raises(ValueError, match='at least 1; got 0'): add_adapters(learner().model, width=0)
    m = add_adapters(learner().model)
    for f in (add_adapters, bitfit, lambda m: reinit_layers(m, 1)):
        with pytest.raises(ValueError, match='add_adapters.*remove_adapters'): f(m)
    with pytest.raises(TypeError, match='Hugging Face'): add_adapters(torch.nn.Linear(2, 2))
    class NoBlocks(torch.nn.Module):
        def __init__(self): super().__init__(); self.config,self.lin = tiny_arch('bert'),torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match='no transformer blocks'): add_adapters(NoBlocks())
    with pytest.raises(ValueError, match='sublayers=.*attention.output.dense'): add_adapters(load_body(tiny_arch('bert', intermediate_size=32)))
    with pytest.raises(ValueError, match='no small part'): save_adapters(learner().model, 'nowhere')

@needs_peft
def test_targets_of_lora():
    with pytest.raises(ValueError, match="'values'.*query, key, value, dense"): add_lora(learner().model, target=('query','values'))
    with pytest.raises(ValueError, match='fits no'): add_lora(learner().model, target=())
    with pytest.raises(ValueError, match='got 0'): add_lora(learner().model, r=0)
    def count(**kw): return sum('lora_A' in n for n,_ in add_lora(learner().model, **kw).named_parameters())
    assert count()==18 and count(target=('query','value'))==6 and count(target='query')==3 and count(target='attention.output.dense')==3
    a,b = (sum(p.numel() for n,p in add_lora(learner().model, r=r).named_parameters() if 'lora_' in n) for r in (1,4))
    assert b==4*a
    x = learner().dls.train.one_batch()[0]
    torch.manual_seed(0); small = pred(loud(add_lora(learner().model, alpha=1)), x)
    torch.manual_seed(0); assert not torch.allclose(pred(loud(add_lora(learner().model, alpha=64)), x), small)
    m = add_lora(learner().model)
    for f in (add_adapters, add_lora):
        with pytest.raises(ValueError, match='merge_adapters'): f(m)

@needs_peft
def test_a_hub_that_is_not_there_is_not_asked_for_adapters(monkeypatch):
    asked = []
    monkeypatch.setattr('transformers.models.auto.auto_factory.find_adapter_config_file', lambda name, **kwargs: asked.append(kwargs['local_files_only']))
    with pytest.raises(OSError, match='No weights for .nobody/nothing'): _from_pretrained(AutoModel, 'nobody/nothing', 'nobody/nothing', config=tiny_arch('bert'))
    assert asked==[True]

def test_without_peft_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'peft', None)
    m = learner().model
    old = list(m.state_dict())
    with pytest.raises(ImportError, match=r'fastformers\[peft\]'): add_lora(m)
    assert list(m.state_dict())==old and not hasattr(m.body, 'adapted')

def test_adapters_need_no_fastai(root):
    code = "import sys, fastformers.models.adapters, fastformers.models.adapters_files; sys.exit('fastai' in sys.modules or 'peft' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code], cwd=root).returncode==0

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

def test_a_refused_file_leaves_frozen_what_was(tmp_path):
    one = learner()
    add_adapters(one.model, 4)
    path = save_adapters(one.model, tmp_path/'a.safetensors')
    other = classifier_learner(classifier_dls(tiny_df().iloc[:12].assign(label=list('ab')*6, is_valid=[False,False,False,True]*3), tiny_tok('bert'), bs=4, device='cpu'), tiny_arch('bert'))
    other.freeze()
    before = [p.requires_grad for p in other.model.parameters()]
    with pytest.raises(ValueError): load_adapters(other.model, path)
    assert [p.requires_grad for p in other.model.parameters()]==before and not all(before)

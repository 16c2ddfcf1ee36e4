"A classifier leaves fastai and gives the same answers; what cannot be opened is refused in a sentence"
import json, logging, subprocess, sys
from functools import partial
import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import CategoryBlock, ColReader, ColSplitter, DataBlock, MultiCategoryBlock, RegressionBlock
from fastai.learner import Learner, load_learner
from fastai.losses import BCEWithLogitsLossFlat, LabelSmoothingCrossEntropyFlat
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline
from fastformers.inference.bundle import hf_classifier
from fastformers.models.core import HFClassifier
from fastformers.data.block import HFTextBlock, tokenizer_of
from fastformers.inference.ensemble import Ensemble
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.heads import PoolingHead, cls_pool, concat_pool, mean_pool
from fastformers.models.families import layer_groups
from fastformers.models.load import load_body
from fastformers.inference.stage_json import read_stage
from fastformers.text.train_tokenizer import train_tokenizer
from test_contracts_common import *

df = tiny_df()
rich = 'bert roberta gpt2 xlnet deberta-v2 modernbert qwen2'.split()
decoders = 'openai-gpt gpt2 llama mistral qwen2 gemma opt bloom gpt_neox'.split()
odd = texts[:9] + ['', ' ', 'one', 'a long story '*200, '[SEP] <pad> <|endoftext|>']

def frame(kind):
    if kind=='pairs': return tiny_pairs(), ['text_a','text_b']
    new = dict(single=df.label, integers=df.label.map(dict(negative=0, neutral=1, positive=2)), multi=df.label.str.replace('positive', 'positive;long'), regression=df.text.str.len()/100)
    return df.assign(label=new[kind]), 'text'

def learner(family, kind='single', **kwargs):
    torch.manual_seed(0)
    o,cols = frame(kind)
    dls = classifier_dls(o, tiny_tok(family), text_col=cols, bs=16, max_len=100, truncation='head_tail', device='cpu')
    learn = quiet(classifier_learner(dls, tiny_arch(family), **kwargs))
    loud(learn.model, by=4.)
    return learn

cases = [(f,'single',None) for f in rich] + [(f,k,None) for f in ('bert','gpt2') for k in ('multi','regression','pairs','integers')] \
      + [(f,'single','hf') for f in rich] + [('bert','multi','hf'), ('gpt2','regression','hf'), ('roberta','pairs','hf')]

@pytest.fixture(scope='module', params=cases, ids=lambda o: '-'.join(map(str, o)))
def bundle(request, tmp_path_factory):
    family,kind,head = request.param
    learn = learner(family, kind, head=head)
    return learn, kind, head, learn.to_hf(tmp_path_factory.mktemp('bundles')/'clf')

def items(kind): return pairs[:7]+[('',''), ('a','b '*300)] if kind=='pairs' else odd
def wanted(learn, o): return learn.get_preds(dl=learn.dls.test_dl(o))[0]

# ---- the same answers

def test_scores_are_those_of_the_learner(bundle):
    learn,kind,head,path = bundle
    o,p = items(kind),from_hf(path, device='cpu')
    want = wanted(learn, o)
    assert want.std(0).max()>1e-3, 'texts are told apart'
    for kw in ({}, dict(bs=1), dict(bs=3, max_tokens=150)): assert gap(p.scores(o, **kw), want)<1e-5
    assert gap(p.scores(o[::-1]), want.flip(0))<1e-5

def test_labels_are_those_of_the_learner(bundle):
    learn,kind,head,path = bundle
    o,p = items(kind),from_hf(path, device='cpu')
    want,got = wanted(learn, o),p(o)
    if kind=='regression': assert all(r['label']=='label' and abs(r['score']-float(w))<1e-4 for r,w in zip(got, want))
    elif kind=='multi':
        for r,w in zip(got, want):
            above = {v:float(s) for v,s in zip(learn.dls.vocab, w) if s>.5}
            assert set(r['label'])==set(above) and all(abs(above[l]-s)<1e-5 for l,s in zip(r['label'], r['score'])) and r['score']==sorted(r['score'], reverse=True)
    else: assert [r['label'] for r in got]==[learn.dls.vocab[i] for i in want.argmax(1)]
    if kind=='integers': assert {type(r['label']) for r in got}=={int}

def test_a_reopened_learner_has_the_same_head(bundle):
    learn,kind,head,path = bundle
    again = classifier_learner(learn.dls, path, head=head)
    assert gap(wanted(again, items(kind)), wanted(learn, items(kind)))<1e-6

@pytest.mark.parametrize('loss', [LabelSmoothingCrossEntropyFlat(eps=.2), torch.nn.functional.cross_entropy])
def test_the_loss_does_not_change_what_a_score_is(tmp_path, loss):
    p = from_hf(learner('bert', loss_func=loss).to_hf(tmp_path/'o'), device='cpu')
    assert p.activation=='softmax' and gap(p.scores(texts[:3]).sum(1), torch.ones(3))<1e-5

def test_a_stage_directory_opens_too(tmp_path):
    learn = learner('bert')
    p = from_hf(learn.save_encoder(tmp_path/'stage', stage='classifier'), device='cpu')
    assert gap(p.scores(odd), wanted(learn, odd))<1e-5 and not (tmp_path/'stage/README.md').exists()

def test_a_head_of_ones_own(tmp_path):
    class Mine(torch.nn.Linear):
        def forward(self, h, mask): return super().forward(h.masked_fill(~mask[...,None], 0.).sum(1))
    learn = learner('bert', head=Mine(32, 3))
    path = learn.to_hf(tmp_path/'o')
    with pytest.raises(ValueError, match=r'head=Mine\(\.\.\.\)'): from_hf(path)
    assert gap(from_hf(path, device='cpu', head=Mine(32, 3)).scores(odd), wanted(learn, odd))<1e-5
    with pytest.raises(ValueError, match='do not fit the head Mine'): from_hf(path, head=Mine(32, 4))

def test_columns_of_numbers(tmp_path):
    o = df.assign(a=df.text.str.len()/50., b=df.text.str.count(' ')/9.)
    dls = classifier_dls(o, tiny_tok('bert'), label_col=['a','b'], y_block=RegressionBlock(n_out=2), device='cpu')
    learn = quiet(classifier_learner(dls, tiny_arch('bert')))
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    r = p('a fine film')[0]
    assert r['label']==['a','b'] and len(r['score'])==2 and gap(p.scores(texts[:4]), wanted(learn, texts[:4]))<1e-5

@pytest.mark.parametrize('kind', ['single','multi','pairs','regression'])
def test_a_data_block(tmp_path, kind):
    o,cols = frame(kind)
    block,read = dict(single=(CategoryBlock,ColReader('label')), pairs=(CategoryBlock,lambda r: r['label']), multi=(MultiCategoryBlock,ColReader('label', label_delim=';')),
                      regression=(RegressionBlock,ColReader('label')))[kind]
    dls = DataBlock(blocks=(HFTextBlock(tiny_tok('bert'), max_len=50), block), get_x=ColReader(cols), get_y=read, splitter=ColSplitter()).dataloaders(o, bs=16, device='cpu')
    learn = quiet(classifier_learner(dls, tiny_arch('bert')))
    loud(learn.model)
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert (p.kind,p.pairs,p.tok.max_len)==('single' if kind=='pairs' else kind, kind=='pairs', 50) and p.labels==(['label'] if kind=='regression' else list(dls.vocab))
    some = pairs[:5] if kind=='pairs' else texts[:5]
    assert gap(p.scores(some), torch.stack([torch.atleast_1d(learn.predict(t)[2]) for t in some]))<1e-5

# ---- Hugging Face's own head

def test_transformers_opens_the_whole(bundle):
    learn,kind,head,path = bundle
    if head!='hf' or learn.model.config.model_type=='qwen2': return # AutoTokenizer knows better than the file what a Qwen2 tokenizer is
    o = items(kind)[:7]
    hf,info = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
    assert not any(info[k] for k in ('missing_keys','unexpected_keys','mismatched_keys'))
    pipe = pipeline('text-classification', str(path), device='cpu')
    got = pipe([dict(text=a, text_pair=b) for a,b in o] if kind=='pairs' else o, top_k=None)
    names = [str(v) for v in learn.dls.vocab] if kind!='regression' else ['label']
    table = torch.tensor([[next(s['score'] for s in r if s['label']==n) for n in names] for r in got])
    assert gap(table, wanted(learn, o).view(len(o),-1))<1e-5

def test_the_body_is_a_checkpoint(bundle):
    learn,kind,head,path = bundle
    if head=='hf': return
    hf,info = AutoModel.from_pretrained(path, output_loading_info=True)
    assert not info['unexpected_keys'] and all('pooler' in k for k in info['missing_keys'])
    assert list(hf.config.id2label.values())==([str(v) for v in learn.dls.vocab] if kind!='regression' else ['label'])

@pytest.fixture(scope='module', params=decoders+['bert','roberta','xlnet'])
def own_head(request):
    torch.manual_seed(0)
    return request.param, loud(hf_classifier(tiny_arch(request.param), 'single', ['a','b','c']), by=4.)

@torch.no_grad()
def test_padding_moves_no_prediction_of_a_decoder(own_head):
    family,model = own_head
    tok = tokenizer(family)
    rows = [tok(t) for t in texts[:6]+['', 'one']]
    want = torch.cat([model(o[None]) for o in rows])
    n = max(map(len, rows))+3
    for left in ([True,False] if family in decoders else [tok.left]):
        x = torch.stack([torch.cat([pad,o] if left else [o,pad]) for o in (r.as_subclass(Tensor) for r in rows) for pad in [torch.full((n-len(o),), int(tok.pad))]])
        assert gap(model(x), want)<1e-5, left

def test_threads_do_not_meet(own_head):
    family,model = own_head
    if family!='gpt2': return
    from concurrent.futures import ThreadPoolExecutor
    tok = tokenizer(family)
    def ask(t):
        with torch.no_grad(): return model(TensorTokens(torch.cat([tok(t).as_subclass(Tensor), torch.full((5+len(t)%7,), int(tok.pad))]))[None])
    many = texts*3
    with ThreadPoolExecutor(4) as pool: got = list(pool.map(ask, many))
    assert all(gap(a, ask(t))<1e-6 for a,t in zip(got, many))

def test_layer_groups_of_hugging_faces_classifier(own_head):
    family,model = own_head
    groups = layer_groups(model)
    assert len(groups)==5 and len({id(p) for g in groups for p in g})==len(list(model.parameters()))==sum(map(len, groups))
    outside = {id(p) for n,p in model.hf.named_parameters() if not n.startswith(model.hf.base_model_prefix+'.')}
    assert outside and outside<={id(p) for p in groups[-1]}

def test_hugging_faces_head_trains_and_freezes(tmp_path):
    learn = learner('gpt2', head='hf')
    assert isinstance(learn.model, HFClassifier)
    before = [p.detach().clone() for g in layer_groups(learn.model)[:-1] for p in g]
    head = learn.model.hf.score.weight.detach().clone()
    learn.freeze_to(-1); learn.fit_one_cycle(1, 1e-2)
    assert all(torch.equal(a, b) for a,b in zip(before, (p for g in layer_groups(learn.model)[:-1] for p in g))) and not torch.equal(head, learn.model.hf.score.weight)
    other = learner('gpt2', head='hf').load_encoder(learn.save_encoder(tmp_path/'o'))
    assert torch.equal(other.model.body.wte.weight, learn.model.body.wte.weight) and torch.equal(other.model.hf.score.weight, head)

def test_a_head_for_other_labels_starts_anew(tmp_path, caplog):
    path = learner('bert', head='hf').to_hf(tmp_path/'o')
    weight = AutoModelForSequenceClassification.from_pretrained(path).classifier.weight
    def head(labels): return hf_classifier(path, 'single', labels).hf.classifier.weight
    assert torch.equal(head(['negative','neutral','positive']), weight)
    assert not torch.equal(head(['x','y','z']), weight) and 'for other labels' in caplog.text
    assert head(['x','y']).shape[0]==2

def test_what_head_may_be():
    with pytest.raises(ValueError, match="module, 'hf' or None"): learner('bert', head='mean')

def test_a_plain_checkpoint_opens(tmp_path):
    cfg = tiny_arch('roberta', num_labels=2, id2label={0:'no',1:'yes'}, label2id={'no':0,'yes':1})
    hf = loud(AutoModelForSequenceClassification.from_config(cfg))
    hf.save_pretrained(tmp_path); tiny_tok('roberta').save_pretrained(tmp_path)
    tok = AutoTokenizer.from_pretrained(tmp_path)
    got = from_hf(tmp_path, device='cpu')(texts[:5], top_k=None)
    for t,r in zip(texts, got):
        with torch.no_grad(): want = hf(**tok(t, return_tensors='pt')).logits.softmax(-1)[0]
        assert abs(next(o['score'] for o in r if o['label']=='yes')-want[1].item())<1e-5

# ---- what comes in, what goes out

@pytest.fixture(scope='module')
def clf(tmp_path_factory): return from_hf(learner('bert').to_hf(tmp_path_factory.mktemp('clf')/'o'), device='cpu')

def test_shapes_of_answers(clf):
    assert clf([])==[] and len(clf('one text'))==1 and isinstance(clf('one text')[0], dict)
    full = clf(texts[:3], top_k=None)
    assert [len(o) for o in full]==[3]*3 and all(o==sorted(o, key=lambda r: -r['score']) for o in full) and [o[0] for o in full]==clf(texts[:3])
    assert [o[:2] for o in full]==clf(texts[:3], top_k=2) and clf(texts[:3], top_k=99)==full
    for o in (tuple(texts), np.array(texts, dtype=object), df.text): assert len(clf(o))==len(texts)

def test_a_generator_is_read_chunk_by_chunk(clf, monkeypatch):
    monkeypatch.setattr(clf, 'chunk', 10, raising=False)
    read = []
    def source():
        for i,t in enumerate(texts*3): read.append(i); yield t
    out = clf(source())
    assert not read
    first = next(out)
    assert len(read)==10
    rest = [first, *out]
    assert len(rest)==len(texts)*3 and [r['label'] for r in rest]==[r['label'] for r in clf(texts)]*3

@pytest.mark.parametrize('bad', [None, 3, float('nan'), b'x', ['a'], ('a','b','c')])
def test_no_text_is_named_by_its_position(clf, bad):
    with pytest.raises(TypeError, match='at position 2'): clf(['a','b',bad])
    with pytest.raises(TypeError, match='at position 2'): list(clf(iter(['a','b',bad])))

def test_scores_are_plain_tensors(clf):
    s = clf.scores(texts[:2])
    s += 1 # a tensor of inference mode would refuse
    assert clf.scores([]).shape==(0,3) and clf.scores('one text').shape==(1,3) and not s.requires_grad

def test_what_is_no_list_of_texts(clf):
    for o in (df, {'text':'a'}, b'abc', None, 3):
        with pytest.raises(TypeError, match='expected a text'): clf(o)
    for kw in (dict(top_k=0), dict(bs=0)):
        with pytest.raises(ValueError, match='1 or more'): clf('a', **kw)

def test_pairs_are_asked_for_pairs(tmp_path):
    p = from_hf(learner('bert', 'pairs').to_hf(tmp_path/'o'), device='cpu')
    assert len(p(pairs[:3]))==3 and p(pairs[0])==p([pairs[0]])
    with pytest.raises(TypeError, match='trained on pairs'): p(list(pairs[0]))

# ---- without fastai, without pickle

def test_no_fastai_is_loaded(bundle):
    learn,kind,head,path = bundle
    if (kind,head) not in (('single',None),('single','hf')) or learn.model.config.model_type!='bert': return
    code = f"""import sys
from fastformers.inference.predictor import from_hf
print(from_hf({str(path)!r}, device='cpu')('a fine film')[0]['label'])
print(sorted({{o.split('.')[0] for o in sys.modules}} & {{'fastai','pandas','matplotlib'}}))"""
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True)
    assert r.returncode==0, r.stderr
    assert r.stdout.split('\n')[:2]==[from_hf(path, device='cpu')('a fine film')[0]['label'], '[]']

def test_files_of_a_bundle(bundle):
    learn,kind,head,path = bundle
    assert {o.suffix for o in path.iterdir()}<={'.json','.safetensors','.md','.jinja','.model','.txt'}
    facts,card = json.loads((path/'classifier.json').read_text()),(path/'README.md').read_text()
    assert facts['max_len']==100 and facts['truncation']=='head_tail' and facts['format']==1
    assert 'from_hf' in card and ('pipeline' in card.split('---')[2])==(head=='hf') and '/tmp' not in card

# ---- directories that are something else

def test_what_is_no_classifier(tmp_path):
    obj = objective('bert')
    lm = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('bert'))
    path = lm.to_hf(tmp_path/'lm')
    assert 'AutoModelForMaskedLM'[9:] in (path/'README.md').read_text() and (path/'stage.json').is_file()
    with pytest.raises(ValueError, match='no classifier head.*classifier_learner'): from_hf(path)
    with pytest.raises(FileNotFoundError, match='not a directory'): from_hf(tmp_path/'nothing')
    (tmp_path/'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='config.json is missing'): from_hf(tmp_path/'empty')
    (path/'head.safetensors').write_bytes(b'')
    with pytest.raises(FileNotFoundError, match='classifier.json is missing'): from_hf(path)

def test_a_learner_that_is_not_ours():
    with pytest.raises(TypeError, match='lm_learner'): Learner(learner('bert').dls, torch.nn.Linear(2, 2), loss_func=torch.nn.functional.mse_loss).to_hf('nowhere')

# ---- fastai's own export

def says_pickle(caplog): return [r for r in caplog.records if 'to_hf' in r.message and r.levelno==logging.WARNING]

@pytest.mark.parametrize('family,head', [('bert',None), ('gpt2','hf')])
def test_export_of_a_classifier(tmp_path, caplog, family, head):
    learn = learner(family, head=head)
    want = learn.predict('a raw text')
    learn.export(tmp_path/'o.pkl')
    assert says_pickle(caplog)
    again = load_learner(tmp_path/'o.pkl')
    got = again.predict('a raw text')
    assert got[0]==want[0] and gap(got[2], want[2])<1e-6
    caplog.clear(); again.export(tmp_path/'again.pkl')
    assert says_pickle(caplog), 'a loaded learner says it too'
    assert gap(from_hf(again.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn, odd))<1e-5

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_export_of_a_language_model(tmp_path, caplog, family):
    obj = objective(family)
    learn = quiet(lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch(family)))
    learn.export(tmp_path/'o.pkl')
    assert says_pickle(caplog)
    again = load_learner(tmp_path/'o.pkl')
    again.predict('a raw text')
    if family=='gpt2': assert again.generate('The', do_sample=False)==learn.generate('The', do_sample=False)
    else: assert again.fill_mask('a [MASK] film')==learn.fill_mask('a [MASK] film')

def test_nothing_is_said_without_a_pickle(tmp_path, caplog):
    learn = learner('bert')
    learn.fit(1); learn.save_encoder(tmp_path/'o')
    assert not says_pickle(caplog)

# ---- words that were added

def extended(style, n=40, special=()):
    tok = tiny_tok(style)
    tok.add_tokens([f'newword{i}' for i in range(n)])
    if special: tok.add_special_tokens(dict(special))
    return tok

@pytest.fixture(scope='module')
def old(tmp_path_factory):
    "A language model as large as its tokenizer, in a directory"
    obj = objective('bert')
    learn = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('bert', vocab_size=len(obj.tok)))
    return learn, learn.save_encoder(tmp_path_factory.mktemp('old')/'lm')

def test_added_tokens_get_embeddings(old, caplog, tmp_path):
    learn,path = old
    tok,n = extended('bert'),len(tiny_tok('bert'))
    more = df.assign(text='newword3 '+df.text)
    lm = quiet(lm_learner(lm_dls(more.iloc[:16], tok, device='cpu'), path))
    assert '40 new rows' in caplog.text
    for o in (lm.model.hf.get_input_embeddings(), lm.model.hf.get_output_embeddings()): assert o.weight.shape[0]==n+40
    assert torch.equal(lm.model.body.embeddings.word_embeddings.weight[:n], learn.model.body.embeddings.word_embeddings.weight)
    lm.fit(1)
    lm.save_encoder(tmp_path/'more')
    clf = quiet(classifier_learner(classifier_dls(more, tok, device='cpu'), tmp_path/'more')) # no further row
    assert clf.model.body.embeddings.word_embeddings.weight.shape[0]==n+40
    for head in (None,'hf'):
        clf = quiet(classifier_learner(classifier_dls(more, tok, device='cpu'), path, head=head)) # straight from the old one
        assert clf.model.body.embeddings.word_embeddings.weight.shape[0]==n+40
        clf.fit(1)
        assert gap(from_hf(clf.to_hf(tmp_path/'clf'), device='cpu').scores(odd), wanted(clf, odd))<1e-5

def test_another_tokenizer_is_still_refused(old):
    _,path = old
    with pytest.raises(ValueError, match='another tokenizer'): classifier_learner(classifier_dls(df, tiny_tok('roberta')), path)
    with pytest.raises(ValueError, match='do not belong together|another tokenizer'): lm_learner(lm_dls(df.iloc[:16], extended('roberta', 200)), path)
    with pytest.raises(ValueError, match='do not belong together'): classifier_learner(classifier_dls(df, extended('bert')), tiny_arch('bert', vocab_size=50))

def begin(tok, arch, **kwargs): return classifier_learner(classifier_dls(df, tok, device='cpu'), arch, **kwargs)

def test_a_tokenizer_of_other_words_is_said(old, caplog, tmp_path):
    "It fits in, and each id means something else"
    learn,_ = old
    plain,own = tmp_path/'plain',tiny_tok('bert')
    learn.model.body.save_pretrained(plain); own.save_pretrained(plain)
    small = train_tokenizer(df.text.tolist(), 'wordpiece', vocab_sz=len(own)//2)
    def said(f): caplog.clear(); f(); return "embeddings mean other words; build the dls with tok='" in caplog.text
    assert len(small)<len(own) and all(said(lambda: begin(small, plain, head=h)) for h in (None,'hf'))
    same = tiny_tok('bert'); same.backend_tokenizer.normalizer = None          # reads otherwise, with the same ids
    for f in (lambda: begin(small, plain, pretrained=False), lambda: begin(own, plain), lambda: begin(extended('bert', 3), plain), lambda: begin(same, plain)): assert not said(f)

@pytest.mark.parametrize('family', [*rich, 't5', 'xlm', 'roformer'])
def test_a_checkpoint_without_a_tokenizer_takes_any(family, caplog, tmp_path):
    "Of no files transformers makes an empty tokenizer, or asks for a package"
    load_body(tiny_arch(family))[0].save_pretrained(tmp_path)
    learn = begin(tiny_tok(family), tmp_path)
    assert learn.model.loaded.loaded>10 and 'other words' not in caplog.text
    if family=='bert': learn.load_encoder(tmp_path)
    small = tmp_path/'small'
    load_body(tiny_arch(family, vocab_size=50))[0].save_pretrained(small)
    with pytest.raises(ValueError, match='do not belong together'): begin(tiny_tok(family), small)

def test_a_padding_token_may_be_added(tmp_path):
    obj = objective('gpt2')
    path = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('gpt2', vocab_size=len(obj.tok))).save_encoder(tmp_path/'lm')
    tok = extended('gpt2', 0, {'pad_token':'[PAD]'})
    learn = quiet(classifier_learner(classifier_dls(df, tok, device='cpu'), path, head='hf'))
    learn.fit(1)
    assert gap(from_hf(learn.to_hf(tmp_path/'clf'), device='cpu').scores(odd), wanted(learn, odd))<1e-5

# ---- verbs of language models

def test_generate_goes_on_with_a_text():
    obj = objective('gpt2')
    torch.manual_seed(0)
    learn = quiet(lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('gpt2')))
    out = learn.generate('The film', max_new_tokens=5, do_sample=False)
    assert out.startswith('The film') and learn.generate('The film', max_new_tokens=1, do_sample=False) in out and isinstance(learn.generate(''), str)
    torch.manual_seed(1); a = learn.generate('The film', do_sample=True, temperature=2.)
    torch.manual_seed(2); assert a!=learn.generate('The film', do_sample=True, temperature=2.)
    with pytest.raises(TypeError, match='fill_mask'): quiet(lm_learner(lm_dls(df.iloc[:16], tiny_tok('bert'), device='cpu'), tiny_arch('bert'))).generate('a')
    with pytest.raises(TypeError, match='generate'): learn.fill_mask('a')
    with pytest.raises(TypeError, match='holds a classifier'): learner('gpt2').generate('a')
    with pytest.raises(ValueError, match='takes 1024'): learn.generate('a', max_new_tokens=2000)

# ---- what a directory must not lose, or pretend to be

class LayerNorm(torch.nn.LayerNorm):
    def forward(self, x): return 3*super().forward(x)

odd_heads = {'concat of mean':lambda: PoolingHead(32, 3, pool=partial(concat_pool, first=mean_pool)), 'a norm of torch\'s name':lambda: PoolingHead(32, 3, norm=LayerNorm),
             'a norm of two arguments':lambda: PoolingHead(32, 3, norm=partial(torch.nn.GroupNorm, 2)), 'another layer':lambda: changed(PoolingHead(32, 3))}
def changed(head): head.layers[3] = torch.nn.GELU(); return head

@pytest.mark.parametrize('name', odd_heads)
def test_a_head_that_only_looks_like_ours_is_asked_for(tmp_path, name):
    learn = learner('bert', head=odd_heads[name]())
    path = learn.to_hf(tmp_path/'o')
    with pytest.raises(ValueError, match='cannot be rebuilt from JSON'): from_hf(path)
    assert gap(from_hf(path, device='cpu', head=odd_heads[name]()).scores(odd), wanted(learn, odd))<1e-5

@pytest.mark.parametrize('kw', [dict(pool='concat'), dict(pool='concat', at='last'), dict(pool=partial(concat_pool, first=cls_pool)), dict(pool='attn'), dict(norm=None), dict(lin_ftrs=(), ps=(.1,), norm=None),
                                dict(norm=torch.nn.BatchNorm1d, y_range=(0,5))], ids=['concat','concat last','concat cls','attn','no norm','no hidden layer','batch norm'])
def test_a_head_that_is_ours_is_rebuilt(tmp_path, kw):
    learn = learner('bert', head=PoolingHead(32, 3, **kw))
    assert gap(from_hf(learn.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn, odd))<1e-5

@pytest.mark.parametrize('head', [None,'hf'])
def test_the_threshold_of_the_loss_is_kept(tmp_path, head):
    texts_ = texts[:12]
    learn = learner('bert', 'multi', head=head)
    for t in (.9, .01):
        learn.loss_func = BCEWithLogitsLossFlat(thresh=t)
        p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
        assert [sorted(o['label']) for o in p(texts_)]==[sorted(learn.predict(o)[0]) for o in texts_]
        assert p(texts_, threshold=.5)==from_hf(learner_of(learn, .5).to_hf(tmp_path/'half'), device='cpu')(texts_)
    assert p(texts_)!=p(texts_, threshold=.9)

def learner_of(learn, t): learn.loss_func = BCEWithLogitsLossFlat(thresh=t); return learn

def test_the_threshold_is_that_of_a_wrapped_loss_too(tmp_path):
    learn = learner('bert', 'multi', loss_func=torch.nn.BCEWithLogitsLoss())
    assert json.loads((learn.to_hf(tmp_path/'o')/'classifier.json').read_text())['threshold']==.5
    assert 'threshold' not in json.loads((learner('bert').to_hf(tmp_path/'p')/'classifier.json').read_text())

def test_single_texts_are_asked_for_single_texts(clf):
    for o in ([['a','b']], [('a','b'), ('c','d')], iter(['a', ('a','b')])):
        with pytest.raises(TypeError, match='trained on single texts.*position'): list(clf(o))

def test_only_what_transformers_opens_whole_is_called_its_model(tmp_path):
    own = torch.nn.Linear(32, 3)
    own.forward = lambda h,m: torch.nn.Linear.forward(own, h[:,0])
    heads = dict(pooled=None, hf='hf', own=own)
    cards = {k:(learner('bert', head=h).to_hf(tmp_path/k)/'README.md').read_text().split('---')[1] for k,h in heads.items()}
    assert {k:('pipeline_tag: text-classification' in o, 'library_name: transformers' in o) for k,o in cards.items()}=={'pooled':(False,False), 'hf':(True,True), 'own':(False,False)}

def test_without_a_limit_nothing_is_cut(tmp_path):
    tok = tiny_tok('t5'); tok.model_max_length = 20
    long = 'a long story '*20
    learn = quiet(classifier_learner(classifier_dls(df, HFTokenizer(tok), device='cpu'), tiny_arch('t5')))
    loud(learn.model)
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert p.tok.max_len is None and gap(p.scores([long]), wanted(learn, [long]))<1e-5
    hf = AutoModelForSequenceClassification.from_config(tiny_arch('bert'))
    hf.save_pretrained(tmp_path/'hf'); tok = tiny_tok('bert'); tok.model_max_length = 20; tok.save_pretrained(tmp_path/'hf')
    assert from_hf(tmp_path/'hf').tok.max_len==20, "a plain checkpoint's tokenizer says what its model takes"

# ---- which head goes on, and what came before

def dated(): return df.assign(label=pd.to_datetime(df.label.map(dict(negative='2020-01-01', neutral='2021-01-01', positive='2022-01-01'))))

@pytest.mark.parametrize('head', [None,'hf'])
def test_labels_that_json_does_not_know_keep_their_head(tmp_path, head, caplog):
    def one(arch):
        return quiet(classifier_learner(classifier_dls(dated(), tiny_tok('bert'), y_block=CategoryBlock(vocab=sorted(dated().label.unique())), device='cpu'), arch, head=head))
    learn = one(tiny_arch('bert'))
    loud(learn.model)
    path = learn.to_hf(tmp_path/'o')
    assert gap(wanted(one(path), odd), wanted(learn, odd))<1e-6 and 'starts random' not in caplog.text

@pytest.mark.parametrize('head', [None,'hf'])
def test_a_head_that_is_kept_is_said_and_can_be_left(tmp_path, head, caplog):
    learn = learner('bert', head=head)
    path = learn.to_hf(tmp_path/'o')
    caplog.clear()
    kept = classifier_learner(learn.dls, path, head=head)
    assert [r.levelno for r in caplog.records if 'is kept' in r.message]==[logging.WARNING] and gap(wanted(kept, odd), wanted(learn, odd))<1e-6
    caplog.clear()
    new = classifier_learner(learn.dls, path, pretrained=False, head=head).load_encoder(path)
    assert 'is kept' not in caplog.text and gap(wanted(new, odd), wanted(learn, odd))>1e-3
    assert torch.equal(new.model.body.embeddings.word_embeddings.weight, learn.model.body.embeddings.word_embeddings.weight)

def lineage(path):
    "The stages behind the one in `path`"
    o,res = read_stage(path),[]
    while isinstance(o.get('parent'), dict): o = o['parent']; res.append(o['stage'])
    return res+[o['parent']]

def test_the_parent_is_what_was_opened(tmp_path):
    path = learner('bert').to_hf(tmp_path/'o')
    learn = quiet(classifier_learner(learner('bert').dls, path))
    for _ in range(3): learn.to_hf(path); assert lineage(path)==['classifier','bert']

def test_a_loaded_encoder_is_the_parent(tmp_path, old):
    learn = quiet(classifier_learner(classifier_dls(df, tiny_tok('bert'), device='cpu'), tiny_arch('bert', vocab_size=len(tiny_tok('bert')))))
    learn.load_encoder(old[1])
    assert lineage(learn.to_hf(tmp_path/'o'))==['language model','bert'] and learn.lineage.parent==str(old[1])

def test_a_learner_without_data_names_none(tmp_path):
    learn = learner('bert')
    learn.export(tmp_path/'o.pkl')
    assert 'data' in read_stage(learn.to_hf(tmp_path/'a'))
    o = read_stage(load_learner(tmp_path/'o.pkl').to_hf(tmp_path/'b'))
    assert 'data' not in o and o['parent']=='bert'

def test_an_encoder_of_fewer_tokens_says_how_to_begin(old, tmp_path):
    _,path = old
    dls,n = classifier_dls(df, extended('bert'), device='cpu'),len(tiny_tok('bert'))
    clf = quiet(classifier_learner(dls, path))
    with pytest.raises(ValueError, match=f'for {n} tokens, this learner for {n+40}; begin with that directory as `arch`'): clf.load_encoder(path)
    more = lm_learner(lm_dls(df.iloc[:16], extended('bert'), device='cpu'), path).save_encoder(tmp_path/'more')
    with pytest.raises(ValueError, match=f'for {n+40} tokens, this learner for {n};.*tok='): quiet(classifier_learner(classifier_dls(df, tiny_tok('bert'), device='cpu'), path)).load_encoder(more)
    with pytest.raises(ValueError, match='another architecture'): quiet(classifier_learner(classifier_dls(df, extended('bert')), tiny_arch('bert', hidden_size=16))).load_encoder(path)

def test_a_mask_is_filled_with_words_of_the_tokenizer():
    learn = quiet(lm_learner(lm_dls(df.iloc[:16], tiny_tok('bert'), device='cpu'), tiny_arch('bert')))
    tok,hf = tokenizer_of(learn.dls).tok,learn.model.hf
    assert hf.get_input_embeddings().num_embeddings>len(tok)
    with torch.no_grad():
        hf.cls.predictions.bias[len(tok):] = 50.
        piece = next(i for o,i in tok.get_vocab().items() if o.startswith('##') and len(o)>3)
        hf.cls.predictions.bias[piece] = 40.
    got = learn.fill_mask('a [MASK] film', n=3)[0]
    assert got[0]['token_str']==tok.convert_ids_to_tokens(piece)[2:] and all(o['token_str'] for o in got)
    assert len(learn.fill_mask('a [MASK] film', n=10**6)[0])==len(tok)

def test_a_trained_hugging_face_head_is_not_left_without_a_word(tmp_path, caplog):
    learn = learner('bert', head='hf')
    path = learn.save_encoder(tmp_path/'hf')
    classifier_learner(learn.dls, path); assert 'is not used, a new one starts random' in caplog.text

@pytest.mark.parametrize('kind', ['single','multi','regression'])
def test_hugging_faces_head_trains_in_half_precision(kind):
    learn = learner('bert', kind, head='hf', dtype=torch.bfloat16)
    learn.fit(1); assert all(o==o for o in learn.recorder.values[-1])

# ---- several as one

@pytest.mark.parametrize('kind', ['single','multi','regression','pairs','integers'])
def test_an_ensemble_is_the_mean_of_its_members(kind, tmp_path):
    "Bodies, tokenizers and heads may differ"
    learns = [learner(f, kind, head=h) for f,h in (('bert',None), ('gpt2',None), ('roberta','hf'))]
    paths,o = [l.to_hf(tmp_path/str(i)) for i,l in enumerate(learns)],items(kind)
    p = Ensemble(paths, device='cpu')
    want = torch.stack([wanted(l, o) for l in learns]).mean(0)
    assert gap(p.scores(o), want)<1e-5 and gap(p.scores(iter(o), bs=2, max_tokens=99), want)<1e-5
    got = p(o, top_k=None)
    assert list(p(iter(o), top_k=None))==got and len(got)==len(o)
    if kind in ('single','integers','pairs'): assert [r['label'] for r in p(o)]==[p.labels[i] for i in want.argmax(1)]
    if kind=='multi': assert [set(r['label']) for r in p(o, threshold=.4)]==[{v for v,s in zip(p.labels, w) if s>.4} for w in want.tolist()]
    assert p([])==[] and p.scores([]).shape==(0,len(p.labels)) and repr(p).startswith('Ensemble of 3: Predictor(')
    with pytest.raises(TypeError, match='expected a text|trained on'): p([None])

def test_members_of_an_ensemble_must_predict_the_same(tmp_path):
    path = learner('bert').to_hf(tmp_path/'clf')
    plain = learner('bert', head='hf').to_hf(tmp_path/'hf')
    (plain/'classifier.json').unlink()                                        # as from elsewhere: nobody knows whether it reads pairs
    for members in ([path, plain], [plain, path], [plain, plain]): assert Ensemble(members, 'cpu').pairs is (None if members==[plain, plain] else False)
    for other in ('multi','regression','pairs','integers'):
        with pytest.raises(ValueError, match='the members of an ensemble predict the same.*`(kind|labels|pairs)`'): Ensemble([path, learner('bert', other).to_hf(tmp_path/'other')], 'cpu')
    p = from_hf(path, device='cpu')
    for few in ([], [path], path, str(path), p, iter([p])):
        with pytest.raises(ValueError, match='two classifiers or more'): Ensemble(few)
    with pytest.raises(FileNotFoundError, match='no/such/place is not a directory'): Ensemble([p, 'no/such/place'], 'cpu')
    assert gap(Ensemble([p, path, p], 'cpu').scores(odd), p.scores(odd))<1e-6

def test_the_threshold_of_an_ensemble_is_the_mean_of_theirs(tmp_path):
    a,b = (from_hf(learner('bert', 'multi', loss_func=BCEWithLogitsLossFlat(thresh=t)).to_hf(tmp_path/str(t)), device='cpu') for t in (.3,.5))
    p = Ensemble([a, b])
    assert p.threshold==pytest.approx(.4) and p(odd)==p(odd, threshold=.4)!=p(odd, threshold=.05)

def test_an_ensemble_looks_at_columns_and_members(tmp_path, caplog):
    def clf(col): return classifier_learner(classifier_dls(df.assign(**{col:df.label}), tiny_tok(), label_col=col, device='cpu'), tiny_arch('bert')).to_hf(tmp_path/col)
    a,b = clf('label'),clf('mood')
    assert Ensemble([a, a], 'cpu').target=='label' and 'columns of different names' not in caplog.text
    assert Ensemble([a, b], 'cpu').target is None and 'columns of different names (label, mood)' in caplog.text
    with pytest.raises(TypeError, match='got None among them'): Ensemble([a, None])

@pytest.mark.parametrize('change, says', [(lambda o: {**o, 'labels':o['labels'][:2]}, 'has 2 labels'), (lambda o: {**o, 'labels':[*o['labels'],'x']}, 'has 4 labels'), (lambda o: [], 'damaged: expected an object, got a list'),
                                          (lambda o: {k:v for k,v in o.items() if k!='head'}, 'damaged: head is missing')])
def test_facts_that_do_not_fit(change, says, tmp_path):
    path = learner('bert').to_hf(tmp_path/'clf')
    f = path/'classifier.json'
    f.write_text(json.dumps(change(json.loads(f.read_text()))))
    with pytest.raises(ValueError, match=says): from_hf(path, device='cpu')(['good work'], top_k=None)

def test_a_regressor_may_say_more_than_its_label(tmp_path):
    "A mean and the logarithm of a variance, say"
    numbers = df.assign(label=df.text.str.len()/10)
    def nll(pred, y): return (pred[:,1]+(pred[:,0]-y.flatten())**2/pred[:,1].exp()).mean()
    learn = classifier_learner(classifier_dls(numbers, tiny_tok(), device='cpu'), tiny_arch('bert'), head=lambda nf,n: PoolingHead(nf, 2), loss_func=nll, metrics=[])
    p = from_hf(learn.to_hf(tmp_path/'clf'), device='cpu')
    assert p.scores(['good work']).shape==(1,2) and len(p('good work')[0]['score'])==2

"Every family of `tiny_families`: trains, has its layers in order, loses nothing on the way to disk, and does not see how texts were batched"
import copy, logging, pickle, sys, threading, pytest, torch, torch.nn.functional as F, transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from fastformers.models import core as models
from fastformers.inference.lm_predictor import LMPredictor
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.core import HFModel, LanguageModel, padding_safe
from fastformers.models.families import block_modules, family_meta, group_names, is_causal, layer_groups
from fastformers.models.load import EncoderLM, fit_vocab, load_body, load_config, load_hf
from fastformers.testing import tiny_families
from fastformers.text.tokenizer import extend_vocab, pair_tokens
from test_contracts_common import *

pytestmark = pytest.mark.exact

everyone = list(tiny_families)
t5s = 't5 mt5 umt5'.split()
decoders = [f for f in everyone if f not in t5s and is_causal(tiny_arch(f))]
with_lm = [f for f in everyone if f!='xlnet']
shared = ['albert']                                   # one block, run three times
chained = {'funnel':4}                                # three blocks and one of the decoder
no_head = 'openai-gpt opt'.split()                    # all of the LM's head is the embeddings (tiny OPT norms inside its decoder's blocks)
def blocks_of(family): return 1 if family in shared else chained.get(family, 3)

def lm_tok(family): return extend_vocab(tiny_tok(family), mask_token='<mask>') if family in t5s else tiny_tok(family) # T5's has none
def lm_objective(family): return (CLM if family in decoders else MLM)(lm_tok(family))

_lms = {}
def lm_of(family):
    if family not in _lms:
        torch.manual_seed(0)
        _lms[family] = loud(lm_objective(family).build(tiny_arch(family)), by=4.)
    return _lms[family]

def rows(n=12): return tiny_df().iloc[:n].assign(is_valid=[False,False,False,True]*(n//4))

# ---- training

@pytest.mark.parametrize('family', everyone)
def test_a_classifier_learns_in_every_group(family):
    torch.manual_seed(0)
    learn = quiet(classifier_learner(classifier_dls(rows(), tiny_tok(family), bs=4), tiny_arch(family), drop_mult=0.))
    before = {k:v.clone() for k,v in learn.model.named_parameters()}
    name = {id(p):k for k,p in learn.model.named_parameters()}
    x,y = learn.dls.train.one_batch()
    def loss():
        with torch.no_grad(): return float(learn.loss_func(learn.model.eval()(x), y))
    first = loss()
    for _ in range(5): # the same batch
        learn.model.train(); learn.create_opt() if learn.opt is None else None
        learn.loss_func(learn.model(x), y).backward(); learn.opt.set_hyper('lr', 2e-3); learn.opt.step(); learn.opt.zero_grad()
    assert loss()<first
    learn.fit(1, lr=1e-3)
    assert all(v.isfinite().all() for v in learn.model.state_dict().values()) and all(o==o for o in learn.recorder.losses)
    for g in layer_groups(learn.model): assert any(not torch.equal(p, before[name[id(p)]]) for p in g)
    assert learn.get_preds()[0].isfinite().all()

# ---- layer groups

def flat(o): return [t for i in (o.values() if hasattr(o,'values') else o) for t in flat(i)] if isinstance(o, (tuple,list,dict)) else [o] if isinstance(o, Tensor) else []

def outputs(model, x, noise_in=None):
    "What each block of `model` gives, and the prediction; noise is added to the parameters of the group `noise_in`"
    model = noisy(model, noise_in)
    blocks = block_modules(model.body)
    seen = [[] for _ in blocks]
    def listen(i, m):
        forward = m.forward # SqueezeBERT calls it without hooks
        def new(*args, **kwargs):
            out = forward(*args, **kwargs)
            seen[i].append(flat(out)[0].clone())
            return out
        m.forward = new
    for i,b in enumerate(blocks): listen(i, b[-1])
    try:
        with torch.no_grad(): return seen, model(x)
    finally:
        for b in blocks: del b[-1].forward

@pytest.mark.parametrize('kind', ['classifier','language model'])
@pytest.mark.parametrize('family', everyone)
def test_groups_are_in_the_order_of_the_signal(family, kind):
    if kind!='classifier' and family not in with_lm: pytest.skip('has no LM objective')
    model,n = classifier(family) if kind=='classifier' else lm_of(family), blocks_of(family)
    groups,names = layer_groups(model),['embeddings', *(f'block {i+1}' for i in range(n)), 'head']
    assert len(block_modules(model.body))==n and group_names(model)==names[:len(groups)]
    assert len(groups)==n+2 or (kind!='classifier' and family in no_head and len(groups)==n+1)
    ps = [id(p) for g in groups for p in g]
    assert len(ps)==len(set(ps)) and set(ps)=={id(p) for p in model.parameters()}
    assert id(model.body.get_input_embeddings().weight) in {id(p) for p in groups[0]}
    x = all_predicted(batch(tokenizer(family), texts[4:5])) # one text: nothing is padded
    old,pred = outputs(model, x)
    for k in range(len(groups)):
        new,other = outputs(model, x, k)
        for i in range(n):
            same = all(torch.equal(a, b) for a,b in zip(new[i], old[i]))
            assert same if i+1<k else not same, (k, i)    # block i is group i+1: noise in group k reaches it from i+1=k on
        assert gap(pred, other)>1e-4, k

# ---- language models

@pytest.mark.parametrize('family', with_lm)
def test_loss_on_predicted_positions_is_that_of_the_dense_head(family):
    obj,model = lm_objective(family),lm_of(family)
    alone = [texts[3], texts[7]]
    for t in alone: # unpadded rows: nothing but the head differs
        x,y = obj((batch(obj.tfm, [t]),), split_idx=0)
        with torch.no_grad(): pred,logits = model(x),model.hf(**model.model_inputs(x)).logits
        assert pred.shape[1]==int((y!=-100).sum())<x.shape[1]
        dense = F.cross_entropy(logits.flatten(0,1), y.flatten(), ignore_index=-100)
        assert gap(obj.loss_func(pred, y), dense)<1e-5*max(1., float(dense)) # T5's is about 200

def in_threads(fs, n=20):
    "What each of `fs` gives, `n` times, while the others run"
    res,errs = [[] for _ in fs],[]
    def work(f, to):
        try:
            for _ in range(n): to.append(f())
        except Exception as e: errs.append(repr(e))
    switch = sys.getswitchinterval(); sys.setswitchinterval(1e-5)
    ts = [threading.Thread(target=work, args=o) for o in zip(fs, res)]
    for o in ts: o.start()
    for o in ts: o.join()
    sys.setswitchinterval(switch)
    assert not errs, errs[0]
    return res

@pytest.mark.parametrize('family', 'bert gpt2 opt fnet'.split())
def test_threads_share_a_language_model(family):
    "Some ask for predicted positions, some run the network itself"
    obj,model = lm_objective(family),lm_of(family)
    xs = [obj((batch(obj.tfm, [t]),), split_idx=0)[0] for t in (texts[3], ' '.join(texts[4:7]), 'Fresh fish')]
    def logits(x):
        with torch.no_grad(): return model(x)
    def dense(x):
        with torch.no_grad(): return model.hf(**model.model_inputs(x)).logits
    fs = [*(lambda x=x: logits(x) for x in xs), *(lambda x=x: dense(x) for x in xs)]
    alone = [f() for f in fs]
    assert len({o.shape for o in alone})>3
    for each,want in zip(in_threads(fs), alone):
        for o in each: assert gap(o, want)<1e-6*max(1., float(want.abs().max()))

@torch.no_grad()
@pytest.mark.parametrize('family', 'bert gpt2 opt albert'.split())
def test_copies_of_a_language_model_and_wrappers_of_one_network_agree(family, tmp_path):
    obj,model = lm_objective(family),lm_of(family)
    x,_ = obj((batch(obj.tfm, texts[:4]),), split_idx=0)
    pred = model(x)
    torch.save(model, tmp_path/'model.pth')
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(tmp_path/'model.pth', weights_only=False), models.LanguageModel(model.hf), models.LanguageModel(model.hf)]
    for m in [*others, model]: assert torch.equal(m(x), pred)
    others[0].body.get_input_embeddings().weight.mul_(.5)
    assert torch.equal(model(x), pred) and gap(others[0](x), pred)>1e-3
    hooks = len(model.body._forward_hooks)
    for _ in range(3): model(x)
    assert len(model.body._forward_hooks)==hooks==1
    new = copy.deepcopy(others[1].hf) # a network that was put in later
    others[1].hf = new
    assert torch.equal(others[1](x), pred)

# ---- to disk and back

@pytest.mark.parametrize('family', everyone)
def test_what_is_saved_is_what_is_loaded(family, tmp_path):
    torch.manual_seed(0)
    path,tok = tmp_path/'stage',lm_tok(family)
    if family in with_lm:
        lm = quiet(lm_learner(lm_dls(rows(), tok, lm_objective(family), bs=4), tiny_arch(family)))
        lm.fit(1, lr=1e-3)
        assert all(o==o for o in lm.recorder.losses) and all(v.isfinite().all() for v in lm.model.state_dict().values())
        lm.save_encoder(path)
        x = batch(tokenizer(family), texts[3:4])
        cls = AutoModelForCausalLM if family in decoders else AutoModelForMaskedLM if family not in t5s else EncoderLM
        hf,info = cls.from_pretrained(path, config=load_config(path), output_loading_info=True)
        assert not any(info[k] for k in ('missing_keys','unexpected_keys','mismatched_keys'))
        args,mine = lm.model.model_inputs(x),lm.model.hf.eval()
        with torch.no_grad():
            theirs = hf.eval()(**args).logits
            assert gap(theirs, mine(**args).logits)<1e-6*max(1., float(theirs.abs().max())) # Funnel's are about 30
            body = load_body(path)[0] if family in t5s else AutoModel.from_pretrained(path)
            assert gap(body.eval()(**args)[0], mine.base_model(**args)[0])<1e-6
    cl = quiet(classifier_learner(classifier_dls(rows(), path if family in with_lm else tok, bs=4), path if family in with_lm else tiny_arch(family)))
    if family in with_lm:
        ours,theirs = cl.model.body.state_dict(),lm.model.body.state_dict()
        if family=='funnel': ours['embeddings.word_embeddings.weight'][0] = theirs['embeddings.word_embeddings.weight'][0] # transformers sets its pad row to 0 when it loads
        assert all(torch.equal(v, theirs[k]) for k,v in ours.items()) and not cl.model.loaded.new
    cl.save_encoder(tmp_path/'cl')
    again = quiet(classifier_learner(classifier_dls(rows(), tmp_path/'cl', bs=4), tmp_path/'cl'))
    assert not again.model.loaded.new and type(again.model.body) is type(cl.model.body)
    preds = cl.get_preds()[0]
    assert gap(again.get_preds()[0], preds)<1e-6
    assert gap(from_hf(tmp_path/'cl', device='cpu').scores(rows().query('is_valid').text.tolist()), preds)<1e-6
    if family in t5s:
        body = getattr(transformers, family_meta[family].encoder).from_pretrained(tmp_path/'cl').eval()
        x = batch(tokenizer(family), texts[3:4])
        with torch.no_grad(): assert gap(body(**cl.model.model_inputs(x))[0], cl.model.body.eval()(**cl.model.model_inputs(x))[0])<1e-6

# ---- padding

short,long = [texts[0], texts[1], 'Fresh fish'],[' '.join(texts[i:i+3]) for i in (3, 9)]

@torch.no_grad()
@pytest.mark.parametrize('side', ['right','left'])
@pytest.mark.parametrize('family', with_lm)
def test_padding_changes_no_logits(family, side):
    tok,lm = tokenizer(family, side),lm_of(family)
    x = batch(tok, short+long)
    assert x.attention_mask.min()==0
    logits = lm(all_predicted(x))
    for i,t in enumerate(short):
        alone = lm(all_predicted(batch(tok, [t])))[0]
        assert gap(alone, logits[i,:len(alone)])<2e-5*max(1., float(alone.abs().max()))

@pytest.mark.parametrize('family', ['fnet','convbert','funnel'])
def test_gradients_flow_through_a_batch_in_parts(family):
    "Each text of the batch moves the weights as much as it does alone"
    m,tok = copy.deepcopy(classifier(family)),tokenizer(family)
    def grads(xs):
        m.zero_grad()
        sum(m(x).sum() for x in xs).backward()
        return torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])
    a,b = grads([batch(tok, short+long)]),grads([batch(tok, [t]) for t in short+long])
    assert gap(a, b)<1e-5*float(b.abs().max())

def test_the_self_test_leaves_no_trace(caplog):
    body = load_body(tiny_arch('fnet', num_hidden_layers=2))[0]
    body.train(); body.encoder.layer[0].eval()
    modes = [m.training for m in body.modules()]
    with caplog.at_level(logging.WARNING): assert not padding_safe(body)
    assert len([r for r in caplog.records if 'padding changes the predictions of fnet' in r.message])==1
    assert modes==[m.training for m in body.modules()] and all(p.grad is None for p in body.parameters())
    body = load_body(tiny_arch('bert', num_hidden_layers=2))[0]
    state = torch.get_rng_state()
    assert padding_safe(body)
    assert torch.equal(state, torch.get_rng_state())

def test_the_self_test_finds_families_it_has_never_heard_of():
    for family,kwargs in (('nystromformer',{}), ('yoso',{})):
        cfg = transformers.AutoConfig.for_model(family, **tiny_families['bert'], **kwargs)
        body = load_body(cfg)[0]
        assert not padding_safe(body)
        m,tok = loud(TextClassifier(body, None, PoolingHead(32, 3))),tokenizer('bert')
        with torch.no_grad(): assert gap(m(batch(tok, short+long))[:1], m(batch(tok, short[:1])))<1e-5

@torch.no_grad()
@pytest.mark.parametrize('n', range(1, 6))
def test_funnel_takes_texts_of_any_length(n):
    m = classifier('funnel')
    x = TensorTokens(torch.arange(10, 10+n)[None])
    wide = TensorTokens(torch.cat([x.ids, torch.zeros(1, 9).long()], 1), attention_mask=[[1]*n+[0]*9])
    both = torch.cat([wide, TensorTokens(torch.arange(20, 29+n)[None])]).as_subclass(TensorTokens)
    assert gap(m(x), m(wide))<1e-6 and gap(m(x), m(both)[:1])<1e-5
    lm = lm_of('funnel')
    assert gap(lm(all_predicted(x)), lm(all_predicted(both))[:1,:n])<1e-4

# ---- decoders: no pad token, no separator

def bare(family):
    "The tokenizer of `family` as the hub has it: nobody set a pad token"
    tok = tiny_tok(family)
    tok.pad_token = None
    return tok

@pytest.mark.parametrize('family', decoders)
def test_a_decoder_needs_no_pad_token(family):
    tok = bare(family)
    assert tok.pad_token is None and tok.pad_token_id is None
    for side in ('right','left'):
        tok.padding_side = side
        learn = quiet(classifier_learner(classifier_dls(rows(), tok, bs=4), tiny_arch(family)))
        x,_ = learn.dls.train.one_batch()
        assert x.attention_mask.min()==0 and (x.attention_mask[:,0].min()==0)==(side=='left')
        learn.fit(1, lr=1e-3)
        assert all(v.isfinite().all() for v in learn.model.state_dict().values())
        preds = learn.get_preds()[0]
        for i,t in enumerate(rows().query('is_valid').text): assert gap(learn.predict(t)[2], preds[i])<1e-5
    lm = quiet(lm_learner(lm_dls(rows(), tok, CLM(tok), bs=4), tiny_arch(family)))
    lm.fit(1, lr=1e-3)
    assert all(o==o for o in lm.recorder.losses)

@pytest.mark.parametrize('family', 'openai-gpt gpt2 llama'.split())
def test_a_pair_for_a_decoder_has_a_separator_and_ends_with_a_classification_token(family):
    tok = pair_tokens(bare(family))
    df = tiny_pairs().iloc[:12].assign(is_valid=[False,False,True]*4)
    learn = quiet(classifier_learner(classifier_dls(df, tok, text_col=['text_a','text_b'], bs=4), tiny_arch(family)))
    x,_ = learn.dls.train.one_batch()
    for r in x:
        ids = r.ids[r.real].tolist()
        assert ids.count(tok.sep_token_id)==1 and ids[-1]==tok.cls_token_id and r.segment_ids[r.real].tolist()==sorted(r.segment_ids[r.real].tolist())
    learn.fit(1, lr=1e-3)
    a,b = df.text_a.iloc[2],df.text_b.iloc[2] # the first of the validation set
    assert gap(learn.predict((a, b))[2], learn.predict((b, a))[2])>1e-6
    assert gap(learn.predict((a, b))[2], learn.get_preds()[0][0])<1e-5

# ---- a tokenizer that grew

@pytest.mark.parametrize('family', everyone)
def test_a_model_grows_with_its_tokenizer(family):
    cls = AutoModelForCausalLM if family in decoders+['xlnet'] else AutoModelForMaskedLM
    torch.manual_seed(0)
    hf = load_hf(cls, tiny_arch(family))[0].eval()
    n,x = hf.config.vocab_size,torch.tensor([[5,6,7,8]*2])
    with torch.no_grad(): old = hf(x).logits
    assert fit_vocab(hf, n)==0 and fit_vocab(hf, n+5)==5 and hf.config.vocab_size==n+5
    w = hf.get_input_embeddings().weight
    with torch.no_grad(): new = hf(x).logits; assert hf(torch.tensor([[5,n+4,7,n]*2])).logits.isfinite().all()
    assert new.shape[-1]==len(w)==n+5 and gap(new[...,:n], old)<1e-5
    assert gap(w[n:].mean(0), w[:n].mean(0))<1e-2 and bool(torch.isfinite(w).all())
    assert len({id(p) for g in layer_groups(hf) for p in g})==len(list(hf.parameters()))

@pytest.mark.parametrize('family', 'bert roberta gpt2 t5'.split())
def test_an_extended_tokenizer_is_accepted_by_the_learners(family, tmp_path):
    tok = extend_vocab(lm_tok(family), [f'drug{i}x' for i in range(400)])
    assert len(tok)>1024
    df = rows(); df['text'] = [f'{t} drug{i}x' for i,t in enumerate(df.text)]
    classifier_learner(classifier_dls(df, tiny_tok(family), bs=4), tiny_arch(family)).save_encoder(tmp_path/'old')
    learn = quiet(classifier_learner(classifier_dls(df, tok, bs=4), tmp_path/'old'))
    learn.fit(1, lr=1e-3)
    assert learn.model.config.vocab_size>=len(tok) and learn.get_preds()[0].isfinite().all()
    if family in with_lm:
        lm = quiet(lm_learner(lm_dls(df, tok, (CLM if family=='gpt2' else MLM)(tok), bs=4), tmp_path/'old'))
        lm.fit(1, lr=1e-3)
        assert lm.model.config.vocab_size>=len(tok) and all(o==o for o in lm.recorder.losses)

# ---- bidirectional decoders

@pytest.mark.parametrize('family,kwargs', [('llama',dict(is_causal=False)), ('qwen2',dict(is_causal=False)), ('gemma3_text',dict(use_bidirectional_attention=True)), ('bert-generation',{})])
def test_a_network_that_sees_what_follows_is_no_causal_language_model(family, kwargs):
    small = dict(vocab_size=1100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    if family in ('qwen2','gemma3_text'): small.update(num_key_value_heads=1, head_dim=16)
    cfg = transformers.AutoConfig.for_model(family, **small, **kwargs)
    assert not is_causal(cfg) and not is_causal(load_body(cfg)[0])
    with pytest.raises(ValueError, match='CLM does not fit'): CLM(tiny_tok('gpt2')).build(cfg)

@pytest.mark.parametrize('family', everyone)
def test_config_and_network_agree_on_who_sees_what_follows(family): assert is_causal(tiny_arch(family))==is_causal(classifier(family).body)==(family in decoders)

# ---- what cannot be loaded

@pytest.mark.parametrize('family', ['bart','mbart','pegasus'])
def test_encoder_decoders_are_refused_in_a_sentence(family):
    cfg = transformers.AutoConfig.for_model(family, vocab_size=99, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2)
    with pytest.raises(ValueError, match=f'{family} is an encoder-decoder'): load_body(cfg)
    with pytest.raises(ValueError, match='encoder-decoder'): load_hf(AutoModelForCausalLM, cfg)

@pytest.mark.parametrize('family', ['gpt2','llama','qwen2'])
def test_pairs_of_a_decoder_after_a_language_model(family, tmp_path):
    "Two tokens are added for pairs: the stage's model gets rows for them, and what is saved answers alike"
    from fastformers.inference.predictor import from_hf
    tok,config,pairs = tiny_tok(family),tiny_arch(family),tiny_pairs()
    config.vocab_size = len(tok)
    lm = lm_learner(lm_dls(tiny_df(), tok, device='cpu'), config)
    lm.save_encoder(tmp_path/'lm')
    dls = classifier_dls(pairs, tmp_path/'lm', text_col=('text_a','text_b'), bs=4, device='cpu')
    learn = classifier_learner(dls, tmp_path/'lm')
    assert learn.model.body.get_input_embeddings().num_embeddings>=len(tok)+2
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    learn.to_hf(tmp_path/'clf')
    texts = list(zip(pairs.text_a, pairs.text_b))[:5]
    mine = learn.get_preds(dl=dls.test_dl(pairs.iloc[:5]))[0]
    assert (from_hf(tmp_path/'clf', device='cpu').scores(texts)-mine).abs().max()<1e-5


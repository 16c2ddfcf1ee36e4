"Scores, choices and continuations equal those computed one token and one text at a time, of any family, from a learner and from a directory"
import pytest, torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
import fastformers.learner.generation # `score`, `choose`, `generate`
from fastformers.data.block import lm_dls
from fastformers.inference.lm_predictor import LMPredictor, lm_from_hf
from fastformers.learner.core import lm_learner
from fastformers.models.core import LanguageModel
from fastformers.models.families import evaluating
from fastformers.papers.xlnet import PLM
from fastformers.papers.electra import RTD
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.encode import HFTokenizer

masked = 'bert roberta xlm-roberta albert electra modernbert deberta-v2 fnet convbert'.split() # padding changes predictions of the last two
causal = 'openai-gpt gpt2 llama mistral qwen2 gemma bloom gpt_neox opt'.split()
texts = ['A wonderful film.', 'The soup was cold, and nobody in our row saw the end coming!', '', 'Fine', 'It works.']

def loud(model):
    "Larger weights: random ones predict nearly the same everywhere"
    for p in model.parameters(): p.data *= 3 if p.ndim>1 else 1
    return model.eval()

def predictor(family):
    torch.manual_seed(0)
    auto = AutoModelForMaskedLM if family in masked else AutoModelForCausalLM
    return LMPredictor(loud(LanguageModel(auto.from_config(tiny_arch(family)))), HFTokenizer(tiny_tok(family)))

@torch.no_grad()
def by_hand(lm, text):
    "(sum of the log-probabilities, their number), with a forward pass of the plain model for each token"
    ids,special = lm.tok(text).ids,{*lm.tok.tok.all_special_ids}
    at = [i for i,o in enumerate(ids.tolist()) if o not in special and (i or not lm.causal)]
    def logp(i):
        if lm.causal: return lm.model.hf(ids[None,:i]).logits[0,-1].log_softmax(-1)[ids[i]]
        hidden = ids.clone(); hidden[i] = lm.tok.tok.mask_token_id
        return lm.model.hf(hidden[None]).logits[0,i].log_softmax(-1)[ids[i]]
    return sum(float(logp(i)) for i in at),len(at)

@pytest.mark.exact
@pytest.mark.parametrize('family', masked+causal)
def test_scores_equal_one_token_at_a_time(family):
    lm = predictor(family)
    res = lm.score(texts)
    want = [by_hand(lm, o) for o in texts]
    assert res.tokens.tolist()==[n for _,n in want] and res.tokens.max()>9
    assert res.total.tolist()==pytest.approx([t for t,_ in want], abs=2e-4, rel=1e-5)
    by_token = lm.score(texts, by_token=True)
    assert by_token.groupby('text').logprob.sum().tolist()==pytest.approx([t for t,n in want if n], abs=2e-4, rel=1e-5)

@pytest.mark.parametrize('family', causal)
def test_texts_continue_in_a_list_as_alone(family):
    lm = predictor(family)
    alone = [lm.generate(o, max_new_tokens=10, do_sample=False) for o in texts]
    assert lm.generate(texts, max_new_tokens=10, do_sample=False)==alone
    assert len({*alone})==len(texts)

def test_unknown_tokens_have_no_score():
    lm = predictor('bert')
    assert '[UNK]' in lm.tok.tok.tokenize('good \u2603 film') and lm.score('good \u2603 film').tokens[0]==lm.score('good film').tokens[0]

def learner(family, path, objective=None):
    torch.manual_seed(0)
    learn = lm_learner(lm_dls(tiny_df(), tiny_tok(family), objective, bs=8, seq_len=48, device='cpu'), tiny_arch(family), path=path)
    loud(learn.model)
    return learn

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_a_directory_answers_like_its_learner(family, tmp_path):
    learn = learner(family, tmp_path)
    lm = lm_from_hf(learn.save_encoder(tmp_path/'lm'), device='cpu')
    assert learn.score(texts).equals(lm.score(texts))
    if family=='gpt2': assert learn.generate(texts, max_new_tokens=5)==lm.generate(texts, max_new_tokens=5)

def test_texts_continue_without_fastai(tmp_path, without_fastai):
    learn = learner('gpt2', tmp_path)
    learn.save_encoder(tmp_path/'lm')
    code = f"""import sys
from fastformers.inference.lm_predictor import lm_from_hf
lm = lm_from_hf({str(tmp_path/'lm')!r}, device='cpu')
print([*lm.score('A film').tokens.tolist(), lm.generate('A film', max_new_tokens=3).startswith('A film'), 'fastai' in sys.modules])"""
    assert without_fastai(code).strip()==str([int(learn.score('A film').tokens[0]), True, False])

def test_questions_leave_a_learner_as_it_is(tmp_path):
    learn = learner('gpt2', tmp_path)
    learn.model.train()
    before = [p.clone() for p in learn.model.parameters()]
    learn.score(texts); learn.generate(texts, max_new_tokens=2)
    assert all(m.training for m in learn.model.modules()) and all(map(torch.equal, before, learn.model.parameters()))

@pytest.mark.exact
def test_the_generator_of_electra_answers(tmp_path):
    learn = learner('electra', tmp_path, RTD(tiny_tok('electra')))
    lm = LMPredictor(learn.model.generator, HFTokenizer(tiny_tok('electra')))
    total,n = by_hand(lm, texts[0])
    assert learn.score(texts[0]).total[0]==pytest.approx(total, abs=2e-4) and n>2
    assert len(learn.fill_mask('A [MASK] film', n=3)[0])==3

def test_a_recurrent_network_continues_each_text_of_a_list_as_alone():
    torch.manual_seed(0)
    tok = HFTokenizer(tiny_tok('gpt2'))
    config = AutoConfig.for_model('awd_lstm', vocab_size=len(tok.tok), hidden_size=32, inner_size=48)
    lm = LMPredictor(loud(LanguageModel(AutoModelForCausalLM.from_config(config))), tok)
    for kwargs in ({}, dict(num_beams=3)):
        assert lm.generate(texts, max_new_tokens=10, **kwargs)==[lm.generate(o, max_new_tokens=10, **kwargs) for o in texts]

def test_xlnet_is_asked_as_it_was_trained():
    tok = HFTokenizer(tiny_tok('xlnet'))
    learn = lm_learner(lm_dls(tiny_df(), tok, PLM(tok), device='cpu'), tiny_arch('xlnet'), precision='fp32')
    with torch.no_grad():
        for p in learn.model.parameters(): p.mul_(8.)                     # so that a leak would show
    for text,words in (('the <mask> was slow', ['soup']), ('the <mask> was <mask>', ['soup','slow'])):
        asked = learn.fill_mask(text, n=3)
        x = tok('the soup was slow')
        at = [x.ids.tolist().index(tok.tok.convert_tokens_to_ids('▁'+w)) for w in words]
        for j,answers in zip(at, asked):                                  # each from all tokens that are no mask
            hide = torch.zeros(len(x), len(x)); hide[:,at] = 1.
            with evaluating(learn.model): p = learn.model.hf(x.ids[None], token_type_ids=x.segment_ids[None], perm_mask=hide[None], target_mapping=torch.eye(len(x))[None,[j]]).logits[0,0].softmax(-1)
            assert [o['score'] for o in answers]==pytest.approx(p.topk(3).values.tolist(), abs=1e-5)

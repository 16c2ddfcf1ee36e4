"""A web service for a classifier: a list of texts in, labels and scores out

    pip install "fastformers[serve]"
    FASTFORMERS_MODEL=models/reviews uvicorn service:app --app-dir examples
    curl localhost:8000/predict -H 'content-type: application/json' -d '{"texts": ["Great sound."]}'

A classifier of pairs takes {"texts": [["one", "two"]]}.

It has no password and reads a body of any size: on the internet, run it behind a proxy that has both.
"""
import os
from asyncio import wrap_future
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from fastformers.inference.predictor import from_hf

max_texts,max_chars = 64,10_000
predictor = from_hf(os.environ['FASTFORMERS_MODEL'])
waiting,worker = [],ThreadPoolExecutor(1) # one thread runs the network, on all cores
app = FastAPI(title='A fastformers classifier')

Text = Annotated[str, Field(max_length=max_chars)]

class Texts(BaseModel):
    texts: Annotated[list[Text | tuple[Text, Text]], Field(min_length=1, max_length=max_texts)]

def answer():
    "Label the texts of all requests that wait, together"
    requests = [waiting.pop(0) for _ in range(len(waiting))]
    requests = [o for o in requests if o[1].set_running_or_notify_cancel()]
    try: answers = iter(predictor([text for texts,_ in requests for text in texts]))
    except Exception as e:
        for _,o in requests: o.set_exception(e)
    else:
        for texts,o in requests: o.set_result([next(answers) for _ in texts])

@app.post('/predict')
async def predict(body: Texts):
    "Label each of the texts"
    answers = Future()
    waiting.append((predictor.as_list(body.texts), answers)) # refuses texts that would fail for all
    worker.submit(answer)
    return await wrap_future(answers)

@app.exception_handler(RequestValidationError)
def refuse(request, e):
    where = ' '.join(map(str, e.errors()[0]['loc'][1:3])) or 'body'
    said = f'expected {{"texts": [...]}} with 1 to {max_texts} texts of at most {max_chars:,} characters'
    return JSONResponse({'error':f"{said}, or pairs; got {where}: {e.errors()[0]['msg'].lower()}"}, 422)

@app.exception_handler(TypeError)
@app.exception_handler(ValueError)
def explain(request, e): return JSONResponse({'error':str(e)}, 422) # such as a classifier of pairs that got texts

"""Keras' fit on the torch backend; prints the loss of each batch as it computed it.

Its optimizer is Keras' own, or torch's in a train_step of the script's own.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

keras.utils.set_random_seed(0)


class Told(keras.losses.MeanSquaredError):
    def __call__(self, *args, **kwargs):
        loss = super().__call__(*args, **kwargs)
        if loss.item():  # else it builds the model
            print("loss", loss.item(), flush=True)
        return loss


class Own(keras.Sequential):
    def train_step(self, data):
        x, y = data
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        self._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        self.torchs = getattr(self, "torchs", None) or torch.optim.SGD(self.parameters(), lr=0.01)
        self.torchs.zero_grad()
        loss.backward()
        self.torchs.step()
        return {"loss": self._loss_tracker.result()}


kind = Own if sys.argv[1] == "own" else keras.Sequential
model = kind([keras.layers.Dense(4), keras.layers.Dense(1)])
rows = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=Told())
model.fit(rows, rows.sum(1, keepdims=True), batch_size=8, epochs=2, verbose=0)

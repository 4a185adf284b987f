from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def fit(self, train, val, epochs):
        for _ in range(epochs):
            self.model.train()
            for batch in train:
                self.step(batch)
            self.validate(val)

    def step(self, batch):
        rows, labels = batch
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.criterion(self.model(rows), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self, val):
        self.model.eval()
        return sum((self.model(a).argmax(1) == b).sum().item() for a, b in val)


model = nn.Sequential(net(16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))
data = TensorDataset(x, y)
trainer = Trainer(model, torch.optim.RAdam(model.parameters(), 1e-2), nn.CrossEntropyLoss())
trainer.fit(DataLoader(data, 16, shuffle=True), DataLoader(data, 32), epochs=6)

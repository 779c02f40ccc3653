package driver;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/** The producers of this process, by name, and every way they send. */
final class Producers {
    private final Map<String, DefaultMQProducer> started = new HashMap<>();

    Map<String, Object> start(Request request) throws Exception {
        String name = request.text("name");
        DefaultMQProducer producer = new DefaultMQProducer(request.text("group", "producers-" + name));
        producer.setNamesrvAddr(request.text("namesrv"));
        // Clients of one process that share an instance name share one connection to one name server: a producer
        // pointed at the proxy would quietly go direct.
        producer.setInstanceName("producer-" + name + "-" + System.nanoTime());
        producer.setRetryTimesWhenSendFailed((int) request.number("retries", 0));
        producer.setRetryTimesWhenSendAsyncFailed((int) request.number("retries", 0));
        producer.setSendMsgTimeout((int) request.number("timeoutMs", 3000));
        if (request.has("vip")) {
            producer.setVipChannelEnabled(request.flag("vip", false));
        }
        if (request.has("createTopicKey")) {
            producer.setCreateTopicKey(request.text("createTopicKey"));
        }
        if (request.has("heartbeatMs")) {
            producer.setHeartbeatBrokerInterval((int) request.number("heartbeatMs"));
        }
        producer.start();
        started.put(name, producer);
        return Driver.ok();
    }

    Map<String, Object> stop(Request request) {
        DefaultMQProducer producer = started.remove(request.text("name"));
        if (producer != null) {
            producer.shutdown();
        }
        return Driver.ok();
    }

    /** The result, or null for an asynchronous send, whose result goes to {@code later}. */
    Map<String, Object> send(Request request, Consumer<Map<String, Object>> later) throws Exception {
        DefaultMQProducer producer = started.get(request.text("producer"));
        if (producer == null) {
            throw new IllegalArgumentException("no such producer: " + request.text("producer"));
        }
        Message message = Messages.fromRequest(request);
        Sending sending = new Sending(message);
        try {
            switch (request.text("mode", "sync")) {
                case "sync":
                    return sending.succeeded(producer.send(message));
                case "selector":
                    return sending.succeeded(
                        producer.send(message, (queues, each, key) -> queues.get(choose(queues, key)), request.number("key")));
                case "oneway":
                    producer.sendOneway(message);
                    return sending.succeeded(null);
                case "async":
                    producer.send(message, sending.callback(later));
                    return null;
                default:
                    throw new IllegalArgumentException("no such mode: " + request.text("mode"));
            }
        } catch (Throwable failure) {
            return sending.failed(failure);
        }
    }

    private static int choose(List<?> queues, Object key) {
        return Math.floorMod((Long) key, queues.size());
    }

    /** One send: its moments, and its outcome as a reply. */
    private static final class Sending {
        private final Message message;
        private final long sentMs = System.currentTimeMillis();

        Sending(Message message) {
            this.message = message;
        }

        SendCallback callback(Consumer<Map<String, Object>> later) {
            return new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    later.accept(succeeded(result));
                }

                @Override
                public void onException(Throwable failure) {
                    later.accept(failed(failure));
                }
            };
        }

        Map<String, Object> succeeded(SendResult result) {
            Map<String, Object> map = stamped(Driver.ok());
            if (result != null) {
                map.put("sendStatus", result.getSendStatus());
                map.put("msgId", result.getMsgId());
                map.put("offsetMsgId", result.getOffsetMsgId());
                map.put("offsetId", Messages.decodeOffsetId(result.getOffsetMsgId()));
                map.put("brokerName", result.getMessageQueue().getBrokerName());
                map.put("queueId", result.getMessageQueue().getQueueId());
                map.put("queueOffset", result.getQueueOffset());
                map.put("regionId", result.getRegionId());
                map.put("traceOn", result.isTraceOn());
            }
            return map;
        }

        Map<String, Object> failed(Throwable failure) {
            return stamped(Driver.failed(failure));
        }

        private Map<String, Object> stamped(Map<String, Object> map) {
            long answeredMs = System.currentTimeMillis();
            map.put("uniqKey", MessageClientIDSetter.getUniqID(message));
            map.put("sentMs", sentMs);
            map.put("answeredMs", answeredMs);
            map.put("elapsedMs", answeredMs - sentMs);
            return map;
        }
    }
}

package driver;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The push consumers of this process, by name; each message they get becomes one event. */
final class Consumers {
    private static final long ASSIGNED_WITHIN_MS = 20_000;

    private final Map<String, DefaultMQPushConsumer> started = new HashMap<>();
    private final Consumer<Map<String, Object>> events;

    Consumers(Consumer<Map<String, Object>> events) {
        this.events = events;
    }

    /** Answers once queues are assigned, so that what is sent from then on is seen without the wait for a rebalance. */
    Map<String, Object> start(Request request) throws Exception {
        String name = request.text("name");
        String topic = request.text("topic");
        DefaultMQPushConsumer consumer = create(name, request.text("group", "consumers-" + name), request.text("namesrv"));
        if (request.has("vip")) {
            consumer.setVipChannelEnabled(request.flag("vip", false));
        }
        if (request.has("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(request.text("sql")));
        } else {
            consumer.subscribe(topic, request.text("expression", "*"));
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            emit(name, messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        started.put(name, consumer);
        Map<String, Object> reply = Driver.ok();
        reply.put("queues", awaitAssignment(consumer, topic));
        return reply;
    }

    Map<String, Object> stop(Request request) {
        DefaultMQPushConsumer consumer = started.remove(request.text("name"));
        if (consumer != null) {
            consumer.shutdown();
        }
        return Driver.ok();
    }

    static DefaultMQPushConsumer create(String name, String group, String namesrv) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer-" + name + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        return consumer;
    }

    static long awaitAssignment(DefaultMQPushConsumer consumer, String topic) throws InterruptedException {
        long deadline = System.nanoTime() + ASSIGNED_WITHIN_MS * 1_000_000;
        while (true) {
            long queues = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic)).count();
            if (queues > 0) {
                return queues;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no queue of " + topic + " assigned within " + ASSIGNED_WITHIN_MS + " ms");
            }
            Thread.sleep(10);
        }
    }

    private void emit(String name, List<MessageExt> messages) {
        long arrivedMs = System.currentTimeMillis();
        for (MessageExt message : messages) {
            Map<String, Object> event = new LinkedHashMap<>();
            event.put("event", "message");
            event.put("consumer", name);
            event.put("arrivedMs", arrivedMs);
            try {
                event.putAll(Messages.describe(message));
            } catch (Exception failure) {
                event.putAll(Driver.failed(failure));
            }
            events.accept(event);
        }
    }
}
